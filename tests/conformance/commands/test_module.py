"""python -m goldformer is the command line."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import LazyGroup, main


def run_module(*words):
    return subprocess.run(
        [sys.executable, "-m", "goldformer", *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_package_runs_as_a_module():
    done = run_module("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: goldformer [OPTIONS] COMMAND")
    assert run_module("explian").returncode == 2


def test_sigterm_stops_once_and_does_not_interrupt_the_cleaning_up():
    """A build server may send it twice; the second one ended the removal of folders in a traceback."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert CliRunner().invoke(main, ["schema", "cases"]).exit_code == 0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_in_the_middle_of_an_import_is_a_sentence(monkeypatch):
    """NumPy cannot be imported again: the sentence that needed it was a traceback, and the status 1."""

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(LazyGroup, "get_command", stop)
    monkeypatch.setitem(sys.modules, "goldformer.conformance.commands._console", None)
    done = CliRunner().invoke(main, ["check"])
    assert (done.exit_code, done.stderr) == (130, "goldformer: stopped\n")


def test_a_stopped_command_ends_with_130_and_not_by_a_signal(tmp_path):
    """Python remembers an interrupt out of an exec() of text, such as dataclasses make of it."""
    path = tmp_path / "mine.py"
    path.write_text('exec("raise KeyboardInterrupt")', encoding="utf-8")
    done = run_module("check", str(path))
    assert done.returncode == 130
    assert done.stderr.startswith(f"goldformer: stopped: the loading of {path} had run for ")


#: Hides the modules that Python lacks on Windows.
_WITHOUT_POSIX = """
import sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
from goldformer.conformance.cli import main
main(sys.argv[1:], prog_name="goldformer")
"""

_SOFTMAX = """
import numpy as np
ARRAYS = "numpy"
def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["check", "mine.py", "--component", "softmax"], 0, ""),
        (
            ["check", "cmd: true"],
            2,
            "goldformer: this needs fcntl, a module of Python on Linux and macOS: on Windows, run it in WSL\n",
        ),
    ],
    ids=["Python", "process"],
)
def test_a_python_adapter_is_checked_without_the_modules_of_posix(words, code, says, tmp_path):
    (tmp_path / "mine.py").write_text(_SOFTMAX, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_POSIX, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, says)
