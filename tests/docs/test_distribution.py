"""The wheel and the source distribution hold what they must, and the wheel works where there is no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from repository import REPOSITORY

ROOMS = ("spec", "reference_impl", "adapters", "conformance")
#: What is made, and not written.
MADE = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", "generated")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with a wheel and a source distribution, built of a copy of the checkout."""
    copy, dist = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in (*ROOMS, "src", "docs", "examples"):
        shutil.copytree(REPOSITORY / name, copy / name, symlinks=True, ignore=MADE)
    for path in REPOSITORY.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    # Without isolation: nothing is downloaded.
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, copy]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dist


def files_of(folder):
    """Every file that people or programs of the project wrote, as its path in the checkout."""
    found = (path for path in (REPOSITORY / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(REPOSITORY).as_posix() for path in found}


def test_the_wheel_holds_the_rooms_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    rooms = {f"goldformer/{name}" for room in ROOMS for name in files_of(room)}
    own = {f"goldformer/{path.name}" for path in (REPOSITORY / "src" / "goldformer").iterdir() if path.is_file()}
    assert names <= rooms | own
    left_out = rooms - names
    assert {name for name in left_out if not name.startswith("goldformer/adapters/examples/")} == {
        name for name in left_out if name.endswith("README.md")
    } - {"goldformer/adapters/examples/README.md"}
    assert own <= names


def test_the_source_distribution_holds_what_people_read_too(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"} <= names
    assert files_of("examples") | files_of("adapters/examples") <= names
    assert {name for room in ROOMS for name in files_of(room)} <= names
    pages = {name for name in files_of("docs") if not name.startswith("docs/generated/")}
    assert pages <= names


def test_the_wheel_works_where_there_is_no_checkout(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}

    def run(*words):
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    place = run("-c", "import goldformer.spec; print(goldformer.spec.ROOT)").stdout.strip()
    assert Path(place).is_relative_to(tmp_path / "installed")
    done = run("-m", "goldformer", "check", "textbook", "--component", "softmax", "-q")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert " conforms (" in done.stdout


@pytest.mark.parametrize("name", ["release", "site"])
def test_a_workflow_has_no_more_rights_than_it_needs(name):
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert "permissions" not in jobs["build"], "what runs code of the project may only read"
    rights = {"id-token": "write"} | ({"pages": "write"} if name == "site" else {})
    assert (jobs["publish"]["needs"], jobs["publish"]["permissions"]) == ("build", rights)
    assert not [step for step in jobs["publish"]["steps"] if "run" in step]
    assert all(job["timeout-minutes"] <= 30 for job in jobs.values() if "uses" not in job)
    if name == "release":
        # It gets no checkout, and runs the host's own program alone.
        (download, upload) = jobs["assets"]["steps"]
        assert jobs["assets"]["permissions"] == {"contents": "write"}
        assert download["uses"].startswith("actions/download-artifact@")
        assert upload["run"].startswith("gh release create ")
        assert "\n" not in upload["run"]


def test_a_release_is_built_from_a_tag_and_tried_from_its_wheel():
    # YAML reads the key "on" as true.
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    assert workflow[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.*"]}}
    commands = "\n".join(step.get("run", "") for step in workflow["jobs"]["build"]["steps"])
    for text in ('= "v$version"', "python -m build", "dist/*.whl", "goldformer check textbook"):
        assert text in commands
