"""python -m goldformer is the command line."""

from __future__ import annotations

import subprocess
import sys


def run_module(*words):
    return subprocess.run(
        [sys.executable, "-m", "goldformer", *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_package_runs_as_a_module():
    done = run_module("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: goldformer [OPTIONS] COMMAND")
    assert run_module("explian").returncode == 2
