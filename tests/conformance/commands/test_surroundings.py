"""The surroundings of code and command: other files, streams, settings. Each gets a true sentence and status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main

GOLDFORMER = str(Path(sys.executable).with_name("goldformer"))
CASE = ("--case", "sm-one-row-by-hand")
RIGHT = """
import numpy as np
ARRAYS = "numpy"
def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
TORCH = "{}\ndef softmax(scores):\n    return scores.softmax(-1)\n"


def run(*words, shell="", **environment):
    """Run goldformer in a process of its own; `shell` is what a shell does with its streams."""
    command = ["sh", "-c", f'"$@" {shell}', "sh", GOLDFORMER, *words]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def check(path, *options):
    return CliRunner().invoke(main, ["check", path, *options])


# ── the code ──


@pytest.mark.parametrize("first", ['ARRAYS = "torch"', "import torch"])
def test_a_file_that_hides_pytorch_is_named(first, adapter_file, tmp_path):
    hiding = tmp_path / "torch.py"
    hiding.write_text("mine = 1\n", encoding="utf-8")
    done = run("check", adapter_file(TORCH.format(first)), *CASE)
    assert done.returncode == 2
    assert f"{hiding} is imported in the place of PyTorch: give this file another name\n" in done.stderr


def test_code_that_removes_the_current_folder_is_2(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    (folder / "mine.py").write_text(f"import shutil\nshutil.rmtree({str(folder)!r})\n{RIGHT}", encoding="utf-8")
    monkeypatch.chdir(folder)
    done = check("mine.py", *CASE)
    assert (done.exit_code, done.stderr) == (2, "goldformer: the current folder: No such file or directory\n")


def test_a_fault_outside_the_checks_is_2(monkeypatch):
    monkeypatch.setattr("goldformer.conformance.commands.check.load_spec", lambda: 1 / 0)
    done = check("textbook")
    assert done.exit_code == 2
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.endswith("goldformer: a fault in goldformer: please report it with the traceback above\n")


# ── streams ──


@pytest.mark.parametrize(
    ("environment", "shell", "says"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "", "error?tol."),
        ({"COLUMNS": "0"}, "", "error÷tol."),
        ({}, ">&-", ""),
        ({}, ">&- 2>&-", ""),
    ],
    ids=["ascii", "no columns", "no output", "no streams"],
)
def test_the_terminal_changes_no_status(environment, shell, says, adapter_file):
    done = run("check", adapter_file(RIGHT), *CASE, shell=shell, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


def test_what_the_code_prints_is_no_json(adapter_file):
    prints = "print('python')\n    ctypes.CDLL(None).puts(b'native')\n    os.system('echo program')\n    powers"
    source = f"import atexit, ctypes, os\natexit.register(print, 'end')\nprint('import')\n{RIGHT}"
    path = adapter_file(source.replace("powers", prints, 1))
    done = run("check", path, *CASE, "--json", "-", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert json.loads(done.stdout)["outcome"] == "conforms"
    assert {"import", "python", "native", "program", "end"} <= set(done.stderr.split())


# ── files ──


def test_an_output_never_replaces_the_file_that_a_link_leads_to(adapter_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adapter_file(RIGHT)
    (tmp_path / "link.py").symlink_to("mine.py")
    done = check("mine.py:softmax", *CASE, "--json", "./link.py")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("goldformer: --json link.py: that is what the command reads")
    assert (tmp_path / "mine.py").read_text(encoding="utf-8") == RIGHT
