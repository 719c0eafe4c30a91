"""python -m goldformer is the command line."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from goldformer.conformance.cli import main


def run_module(*words):
    return subprocess.run(
        [sys.executable, "-m", "goldformer", *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_package_runs_as_a_module():
    done = run_module("explain", "SM-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == CliRunner().invoke(main, ["explain", "SM-1"]).stdout
    assert run_module("--help").stdout.startswith("Usage: goldformer [OPTIONS] COMMAND")
    assert run_module("explian").returncode == 2
