"""python -m goldformer is the command line."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main


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
