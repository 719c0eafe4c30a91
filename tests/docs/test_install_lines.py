"""goldformer is not on PyPI: no line says that it is, and every hint to install something names what is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.grading.pool import Unusable
from goldformer.extras import PACKAGES, install_hint
from repository import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

#: From a clone that lies in this folder, and the commit of a repository whose address the reader fills in.
FORMS = re.compile(
    r"""'\./goldformer\[(?P<clone>[\w,-]+)\]'"""
    r"""|\./goldformer(?![\w[/])"""
    r"""|"goldformer(?:\[(?P<address>[\w,-]+)\])?\ @\ git\+\$GOLDFORMER_SOURCE@\$GOLDFORMER_COMMIT" """.rstrip(),
)
#: What is none of these: an installer and the name, on one line or in what follows a backslash; or a bare extra.
OTHERS = (
    re.compile(r"\b(?:pip3?|pipx|uv|conda|poetry)\b[^\n]*\b(?:install|add|download)\b(?:\\\n|[^\n`])*?\bgoldformer\b"),
    re.compile(r"\bgoldformer\[[a-z]"),
    re.compile(r"pypi\.org|published on PyPI", re.IGNORECASE),
)
#: pyproject.toml names its own extras; this file spells out what is wrong.
SPARED = {"pyproject.toml", "tests/docs/test_install_lines.py"}
#: What pip is told of in the files that it may do: folders are no files of ours.
SKIPPED = {".git", "build", "dist", "generated", "__pycache__"}


def texts():
    """Every text file of the checkout by its name: those that git tracks, or all where there is no git."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    names = listed.stdout.splitlines() if listed.returncode == 0 else []
    for name in names or sorted(walked()):
        path = REPOSITORY / name
        if path.is_symlink() or not path.is_file() or name in SPARED:
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            yield name, data.decode("utf-8")


def walked():
    for folder, folders, files in os.walk(REPOSITORY):
        folders[:] = [
            one for one in folders if one not in SKIPPED and not one.startswith(".") and ".egg-info" not in one
        ]
        yield from ((Path(folder) / name).relative_to(REPOSITORY).as_posix() for name in files)


def others(text):
    """The lines that would install goldformer from where it is not."""
    rest = FORMS.sub("", text)
    return [match[0] for pattern in OTHERS for match in pattern.finditer(rest)]


def test_no_file_installs_what_does_not_exist():
    found = dict(texts())
    assert len(found) > 300
    assert {"README.md", "docs/tutorial.md", "examples/grading/gradescope/setup.sh"} <= found.keys()
    assert {name: lines for name, text in found.items() if (lines := others(text))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "$ pip install goldformer",
        "pip install 'goldformer[torch]'",
        "run: pip install --upgrade \\\n  goldformer",
        "{python} -m pip install goldformer",
        "any image with Python and `goldformer[torch,cluster]`",
        "uv pip install goldformer",
        "uv add goldformer",
        "pip install git+https://host/owner/goldformer",
        'pip install "goldformer @ git+https://host/owner/goldformer@main"',
        "https://pypi.org/project/goldformer",
    ],
)
def test_a_line_that_does_not_work_is_found(line):
    assert others(line)


@pytest.mark.parametrize(
    "line",
    [
        "$ pip install ./goldformer",
        "$ pip install './goldformer[torch]'           # or: pip install ./goldformer, for NumPy",
        '/bin/pip install --no-cache-dir "goldformer[cluster,torch] @ git+$GOLDFORMER_SOURCE@$GOLDFORMER_COMMIT"',
        'pip install "goldformer @ git+$GOLDFORMER_SOURCE@$GOLDFORMER_COMMIT"',
        "pip install -e '.[torch,cluster]'",
        "pip install torch",
    ],
)
def test_a_line_that_works_is_not(line):
    assert not others(line)


def test_every_extra_that_is_installed_exists():
    named = {
        extra
        for _, text in texts()
        for match in FORMS.finditer(text)
        for extra in (match["clone"] or match["address"] or "").split(",")
    }
    assert named - {""} <= EXTRAS.keys()
    assert {"torch", "jax", "cluster"} <= named


def test_a_workflow_has_the_address_to_be_filled_in():
    path = REPOSITORY / "examples" / "grading" / "github-classroom.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["env"].keys() == {"GOLDFORMER_SOURCE", "GOLDFORMER_COMMIT"}
    assert all(value.startswith("FILL IN ") for value in workflow["env"].values())
    (installing,) = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "pip" in step.get("run", "")
    ]
    *_, requirement = shlex.split(installing)
    assert re.fullmatch(r"goldformer\[[\w,]+\] @ git\+\$GOLDFORMER_SOURCE@\$GOLDFORMER_COMMIT", requirement)


def setup(folder, **environment):
    """Run setup.sh in a folder in which no program does anything but say its name and arguments."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("apt-get", "python3", "chmod", "pip"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    text = (REPOSITORY / "examples" / "grading" / "gradescope" / "setup.sh").read_text(encoding="utf-8")
    script = folder / "setup.sh"
    script.write_text(re.sub(r"\S+/bin/pip", "pip", text), encoding="utf-8")
    known = {"PATH": f"{programs}:/usr/bin:/bin", "AUTOGRADER": "/autograder", **environment}
    return subprocess.run(["bash", script], env=known, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("filled", [{}, {"GOLDFORMER_SOURCE": "https://host/goldformer"}, {"GOLDFORMER_COMMIT": "abc"}])
def test_setup_says_what_is_to_be_filled_in_before_it_does_anything(filled, tmp_path):
    done = setup(tmp_path, **filled)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "setup.sh: GOLDFORMER_SOURCE and GOLDFORMER_COMMIT are empty: fill in the address that you cloned goldformer "
        "from, and the commit to install\n"
    )


def test_setup_installs_a_commit_and_hides_the_solution(tmp_path):
    done = setup(tmp_path, GOLDFORMER_SOURCE="https://host/goldformer", GOLDFORMER_COMMIT="abc")
    assert (done.returncode, done.stderr) == (0, "")
    *_, installed, hidden = done.stdout.splitlines()
    assert installed == "pip install --no-cache-dir goldformer[torch] @ git+https://host/goldformer@abc"
    assert hidden == "chmod -R go-rwx /autograder/source/assignment"
    assert "apt-get install -y python3-venv git jq" in done.stdout.splitlines()


# ── hints ──


def plain(requirements):
    return [re.match(r"[\w-]+", requirement)[0] for requirement in requirements]


def test_a_hint_names_the_packages_of_its_extra():
    assert plain(PROJECT["dependencies"]) == list(PACKAGES[""])
    for extra, packages in PACKAGES.items():
        assert not extra or plain(EXTRAS[extra]) == list(packages)
    # What no message hints at.
    assert EXTRAS.keys() - PACKAGES.keys() == {"libraries", "docs", "dev"}
    assert install_hint("cluster") == "pip install distributed"
    assert install_hint("keras", "/venv/bin/python -m pip") == "/venv/bin/python -m pip install keras torch"


@pytest.fixture
def without_flint(monkeypatch):
    """An environment that is older than the checkout: python-flint is not installed."""
    monkeypatch.setitem(sys.modules, "flint", None)
    for name in [name for name in sys.modules if name.startswith("goldformer.spec.oracle")]:
        monkeypatch.delitem(sys.modules, name)


ASSIGNMENT = "title: Softmax\ncomponents: {softmax: 10}\nfresh: {cases: 1, seed: a}\n"
ADAPTER = 'import submission\nARRAYS = "numpy"\ndef softmax(scores):\n    return submission.softmax(scores)\n'


@pytest.mark.parametrize("command", ["grade", "assignment check", "derive --check"])
def test_an_incomplete_environment_is_told_with_what_to_install(command, tmp_path, without_flint):
    for name, text in {"assignment.yaml": ASSIGNMENT, "adapter.py": ADAPTER, "class/alice.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assignment = str(tmp_path / "assignment.yaml")
    words = {
        "grade": [str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--assignment", assignment],
        "assignment check": [assignment],
        "derive --check": [],
    }[command]
    result = CliRunner().invoke(main, [*command.split(), *words])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "goldformer: goldformer needs python-flint, not installed here: pip install python-flint\n"


def test_a_scheduler_without_dask_says_what_to_install(monkeypatch):
    from goldformer.conformance.grading.cluster import grade_on_cluster

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(Unusable, match=r"^--scheduler needs Dask: pip install distributed \("):
        next(grade_on_cluster(None, [], "tcp://127.0.0.1:1"))
