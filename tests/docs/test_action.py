"""The action for GitHub: its shell steps run here as a runner runs them, with a pip that installs nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner

from goldformer.conformance.cli import main
from repository import REPOSITORY

ACTION = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")
RIGHT = """
import numpy as np
ARRAYS = "numpy"
NAME = "mine"
def causal_mask(*, q_seq, kv_seq):
    return np.tri(q_seq, kv_seq, dtype=bool)
"""
WRONG = RIGHT.replace("np.tri(", "~np.tri(")


@dataclass
class Runner:
    """Runs the steps of the action in a folder, as GitHub does; expressions are those that the action uses."""

    folder: Path
    inputs: dict[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    used: list[dict[str, str]] = field(default_factory=list)

    def fill(self, text):
        return EXPRESSION.sub(lambda match: self.look_up(match[1]), str(text))

    def look_up(self, name):
        place, _, rest = name.partition(".")
        if place == "inputs":
            return self.inputs[rest]
        step, _, output = rest.partition(".outputs.")
        assert (place, bool(output)) == ("steps", True), name
        return self.outputs[step][output]

    def wanted(self, step):
        """Evaluate the condition of a step: without cancelled(), a step after a failure is skipped."""
        condition = EXPRESSION.sub(r"\1", step.get("if", "")).strip()
        if "cancelled()" not in condition and any(self.statuses.values()):
            return False
        for part in filter(None, condition.split(" && ")):
            if part == "!cancelled()":
                continue
            left, operator, right = re.fullmatch(r"(\S+) (==|!=) '(.*)'", part).groups()
            if left == "steps.install.outcome":
                value = "success" if self.statuses.get("install") == 0 else "failure"
            else:
                value = self.look_up(left)
            if (value == right) is not (operator == "=="):
                return False
        return True

    def run(self):
        """Run all steps; those that use other actions are only noted."""
        for nth, step in enumerate(STEPS):
            if not self.wanted(step):
                continue
            name = step.get("id", str(nth))
            if "uses" in step:
                self.used.append({"uses": step["uses"], **{k: self.fill(v) for k, v in step["with"].items()}})
                continue
            done = self.run_shell(step)
            self.statuses[name], self.errors[name] = done.returncode, done.stderr
            lines = (self.folder / "output").read_text(encoding="utf-8").splitlines()
            self.outputs[name] = dict(line.split("=", 1) for line in lines)
        return self

    def run_shell(self, step):
        assert step["shell"] == "bash"
        for name in ("output", "script"):
            (self.folder / name).write_text(step["run"] if name == "script" else "", encoding="utf-8")
        environment = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder), "RUNNER_OS": "Linux",
            "GITHUB_ACTION_PATH": str(REPOSITORY), "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"), "CI": "true", "OPENBLAS_NUM_THREADS": "1",
            **{name: self.fill(value) for name, value in step.get("env", {}).items()},
        }  # fmt: skip
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(self.folder / "script")]
        return subprocess.run(
            words, cwd=self.folder / "repository", env=environment, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip


@pytest.fixture
def act(tmp_path, monkeypatch):
    """Return what runs the action on an adapter with some inputs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    # pip says what it was asked for; all else is the Python of the tests.
    pip = f"""
if [ "$2" = pip ]; then
  printf "%s\\n" "$PIP_EXTRA_INDEX_URL" "$@" >> {tmp_path}/pip
  if [ "$3" = install ]; then exit $(cat {tmp_path}/status); fi
  echo {tmp_path}/cache
  exit
fi"""
    for name, lines in {
        "python": f'{pip}\nexec {sys.executable} "$@"',
        "goldformer": f'exec {sys.executable} -m goldformer "$@"',
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)

    def run(source, pip_status=0, **given):
        Path("my adapter.py").write_text(source, encoding="utf-8")
        (tmp_path / "status").write_text(str(pip_status), encoding="utf-8")
        names = {name.replace("_", "-"): value for name, value in given.items()}
        assert names.keys() <= ACTION["inputs"].keys()
        defaults = {name: about.get("default", "") for name, about in ACTION["inputs"].items()}
        return Runner(tmp_path, {**defaults, "adapter": "my adapter.py", **names}).run()

    return run


def test_one_run_leaves_all_reports_and_a_summary(act, tmp_path):
    done = act(RIGHT, options="--component causal_mask --dtype float32")
    assert done.statuses == {"pip": 0, "install": 0, "4": 0}
    reports = Path("goldformer-reports")
    assert {path.name for path in reports.iterdir()} == {"junit.xml", "check.md", "check.html"}
    assert len(ElementTree.parse(reports / "junit.xml").findall(".//testcase")) > 5
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == (reports / "check.md").read_text(encoding="utf-8")
    assert done.used[-1] == {"uses": "actions/upload-artifact@v4", "name": "goldformer", "path": "goldformer-reports"}


def test_what_it_installs_and_keeps(act, tmp_path):
    done = act(RIGHT, check="false", extras="", packages="numpy==2.* -r requirements.txt", extra_index_url="https://i")
    assert set(done.statuses.values()) == {0}
    installed = (tmp_path / "pip").read_text(encoding="utf-8").splitlines()
    assert installed[-8:] == [
        "https://i", "-m", "pip", "install", str(REPOSITORY), "numpy==2.*", "-r", "requirements.txt",
    ]  # fmt: skip
    setup, cache, _ = done.used
    assert setup == {"uses": "actions/setup-python@v5", "python-version": "3.12"}
    assert cache["path"] == f"{tmp_path}/cache"
    version = ".".join(map(str, sys.version_info[:2]))
    assert re.fullmatch(rf"goldformer-pip-Linux-{version}-[0-9a-f]{{40}}-\d{{4}}-\d\d", cache["key"])
    assert cache["key"].startswith(cache["restore-keys"])
    other = act(RIGHT, check="false", python_version="")
    assert (tmp_path / "pip").read_text(encoding="utf-8").splitlines()[-1] == f"{REPOSITORY}[torch]"
    assert [step["uses"].partition("@")[0] for step in other.used] == ["actions/cache", "actions/upload-artifact"]
    assert other.used[0]["restore-keys"] != cache["restore-keys"]


def test_a_check_that_fails_fails_the_step_and_keeps_nothing_from_being_seen(act, tmp_path):
    Path("adapter.py").write_text(RIGHT, encoding="utf-8")
    words = ["baseline", "record", "adapter.py", "--out", "base line", "--dtype", "float32"]
    assert CliRunner().invoke(main, words).exit_code == 0
    done = act(WRONG, options="--dtype float32", baseline="base line", artifact="mine")
    assert list(done.statuses.values()) == [0, 0, 1, 1]
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert [line for line in summary.splitlines() if line.startswith("## ")] == [
        "## Conformance to the Transformer", "## ✗ mine against its baseline",
    ]  # fmt: skip
    assert {path.name for path in Path("goldformer-reports").iterdir()} == {
        "junit.xml", "check.md", "check.html", "drift.md", "drift.html", "drift.json",
    }  # fmt: skip
    assert done.used[-1]["name"] == "mine"
    allowed = act(WRONG, check="false", baseline="base line", baseline_options="--allow form")
    assert list(allowed.statuses.values()) == [0, 0, 0]


def test_the_reports_are_in_the_folder_that_is_named(act):
    done = act(RIGHT, options="--component causal_mask --dtype float32", reports="my reports")
    assert Path("my reports", "junit.xml").exists()
    assert not Path("goldformer-reports").exists()
    assert done.used[-1]["path"] == "my reports"


def test_too_few_cases_fail_the_step_unless_they_are_allowed(act):
    few = RIGHT.replace(
        "    return", "    if q_seq != kv_seq:\n        raise NotImplementedError('square')\n    return"
    )
    done = act(few)
    assert list(done.statuses.values()) == [0, 0, 3]
    assert "partial · " in Path("goldformer-reports/check.md").read_text(encoding="utf-8")
    assert list(act(few, options="--allow-partial").statuses.values()) == [0, 0, 0]


def test_an_adapter_that_cannot_be_used_is_2_without_a_summary(act, tmp_path):
    done = act("import nothing_of_this_name\n")
    assert list(done.statuses.values()) == [0, 0, 2]
    assert not (tmp_path / "summary.md").exists()


def test_nothing_runs_where_nothing_was_installed(act):
    done = act(RIGHT, pip_status=1, baseline="base")
    assert done.statuses == {"pip": 0, "install": 1}
    assert [step["uses"].partition("@")[0] for step in done.used] == ["actions/setup-python", "actions/cache"]


def test_no_input_becomes_part_of_a_script():
    """An expression in a script would be run: a name of an adapter could be a command."""
    assert not [step for step in STEPS if "${{" in step.get("run", "")]
    used = {name for step in STEPS for name in re.findall(r"inputs\.([\w-]+)", json.dumps(step))}
    assert used == ACTION["inputs"].keys()


def test_options_are_words_and_no_patterns_of_the_shell(act):
    """`*.py` stands for no component, and not for the names of the files here."""
    done = act(RIGHT, options="--component *.py")
    assert (done.statuses["4"], "--component *.py: nothing fits" in done.errors["4"]) == (2, True)
