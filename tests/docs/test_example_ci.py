"""The example for GitHub Actions: it is YAML, and what it calls exists."""

from __future__ import annotations

import shlex
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import yaml

from goldformer.conformance.cli import main
from repository import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "ci" / "github-actions.yml"
(JOB,) = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["jobs"].values()
LINES = [shlex.split(line, comments=True) for step in JOB["steps"] for line in step.get("run", "").splitlines()]


def of(program):
    found = [words[1:] for words in LINES if words[0] == program]
    assert found, f"the example never calls {program}"
    return found


def test_every_command_is_one_that_is_looked_at_here():
    assert {words[0] for words in LINES} == {"pip", "pytest", "goldformer"}


def test_it_runs_on_every_push():
    # The key `on` is the boolean true to YAML 1.1.
    assert "push" in yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))[True]


@pytest.mark.parametrize("words", of("goldformer"), ids=" ".join)
def test_goldformer_takes_every_option_and_argument(words):
    command = main.get_command(None, words[0])
    # Parses without running; an unknown option raises.
    context = command.make_context(words[0], words[1:])
    assert "my_adapter.py" in (context.params.get("adapter"), *context.params.get("adapters", ()))


def test_pytest_runs_as_it_is_told_and_leaves_its_report(tmp_path):
    (words,) = of("pytest")
    (tmp_path / "my_adapter.py").write_text("from goldformer.adapters.builtin.textbook import *\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    # One component in one dtype, so that it is quick.
    command += ["--component", "causal_mask", "--dtype", "float32"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(ElementTree.parse(tmp_path / "conformance.xml").iter("testcase"))) > 10


def test_what_is_uploaded_is_what_was_saved():
    (uploaded,) = (step["with"]["path"].split() for step in JOB["steps"] if "upload" in step.get("uses", ""))
    words = [word for line in LINES for word in line]
    assert [name for name in uploaded if name not in words and f"--junitxml={name}" not in words] == []


def test_a_failing_check_does_not_keep_the_summary_from_being_written():
    after = [step for step in JOB["steps"] if "goldformer " in step.get("run", "") and "pip" not in step["run"]]
    after = [step for step in after if not step["run"].startswith("pytest")]
    assert len(after) == 2
    assert all("cancelled" in step["if"] for step in after)
