"""The surroundings of code and command: other files, streams, settings. Each gets a true sentence and status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import goldformer
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


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        ("import pytest; pytest.skip('no')", "raised Skipped: no ("),
        ("import asyncio; raise asyncio.CancelledError('no')", "raised CancelledError: no ("),
        ("raise GeneratorExit('no')", "raised GeneratorExit: no ("),
    ],
    ids=["pytest", "asyncio", "generator"],
)
def test_every_exception_of_the_code_is_its_own(raised, says, adapter_file):
    called = check(adapter_file(f'ARRAYS = "numpy"\ndef softmax(scores):\n    {raised}\n'), *CASE)
    assert called.exit_code == 1
    assert says in " ".join(called.stdout.split())
    loaded = check(adapter_file(f'ARRAYS = "numpy"\n{raised}\n'), *CASE)
    assert loaded.exit_code == 2
    assert f"could not be imported: {says.removeprefix('raised ')}" in loaded.stderr


def test_the_code_chooses_how_numpy_handles_its_own_errors_only(adapter_file):
    """The exponentials of goldformer underflow, as they may."""
    strict = RIGHT.replace("ARRAYS", 'np.seterr(all="raise")\nARRAYS')
    cases = ("--case", "sm-one-row-by-hand,sm-a-thousand", "-v")
    called = check(adapter_file(strict), *cases)
    assert "fault in goldformer" not in called.stdout
    assert "raised FloatingPointError: underflow encountered in exp (" in " ".join(called.stdout.split())
    lenient = strict.replace("    powers", '    with np.errstate(all="ignore"):\n        powers', 1)
    assert check(adapter_file(lenient, "other.py"), *cases).exit_code == 0
    with np.errstate(all="raise"):
        assert goldformer.check(adapter_file(lenient, "third.py"), cases=["sm-a-thousand"]).conforms
        assert np.geterr()["under"] == "raise"


def test_the_code_does_not_see_the_command_line(adapter_file):
    parser = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--size', {})\nparser.parse_args()\n"
    )
    assert check(adapter_file(RIGHT + parser.format("default=1")), *CASE).exit_code == 0
    refused = check(adapter_file(RIGHT + parser.format("required=True"), "other.py"), *CASE)
    assert refused.exit_code == 2
    assert refused.stderr.endswith('put what is a program under `if __name__ == "__main__":`\n')


def test_a_file_in_utf_16_is_named_as_that(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(RIGHT, encoding="utf-16")
    done = check(str(path), *CASE)
    assert done.exit_code == 2
    assert "None" not in done.stderr
    assert done.stderr.endswith(". The file is in UTF-16: save it in UTF-8\n")


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--html", "mine.py"), "--html mine.py: that is what the command reads"),
        (("--json", "./link.py"), "--json link.py: that is what the command reads"),
        (("--html", "x", "--json", "x"), "--html x: --json writes that file too"),
        (("--markdown", "notes.md"), "--markdown notes.md: goldformer did not write this file"),
    ],
)
def test_an_output_never_replaces_another_file(options, says, adapter_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adapter_file(RIGHT)
    (tmp_path / "link.py").symlink_to("mine.py")
    (tmp_path / "notes.md").write_text("Buy milk.\n", encoding="utf-8")
    done = check("mine.py:softmax", *CASE, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"goldformer: {says}")
    assert (tmp_path / "mine.py").read_text(encoding="utf-8") == RIGHT


@pytest.mark.parametrize("command", ["check", "compare", "baseline"])
def test_a_report_replaces_an_older_one(command, adapter_file, tmp_path):
    path, names = adapter_file(RIGHT), ("json", "markdown", "html") + (("junit",) if command == "check" else ())
    outputs = [word for name in names for word in (f"--{name}", str(tmp_path / name))]
    words = [command, path, *("-c", "softmax")]
    if command == "baseline":
        folder = str(tmp_path / "cpu")
        assert CliRunner().invoke(main, ["baseline", "record", *words[1:], "--out", folder]).exit_code == 0
        words = [command, "check", path, folder]
    for _ in range(2):
        done = CliRunner().invoke(main, [*words, *outputs])
        assert done.exit_code == 0, done.output


def test_a_recording_does_not_replace_the_manifest_of_others(adapter_file, tmp_path):
    folder = tmp_path / "chart"
    folder.mkdir()
    (folder / "manifest.yaml").write_text("name: chart\n", encoding="utf-8")
    done = CliRunner().invoke(main, ["baseline", "record", adapter_file(RIGHT), "-c", "softmax", "--out", str(folder)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "manifest.yaml: is no baseline; name a folder that is empty or new" in done.stderr
    assert (folder / "manifest.yaml").read_text(encoding="utf-8") == "name: chart\n"
