"""Notebooks that are run in a real kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: In a process of its own: the packages of Jupyter leave sockets and warnings behind.
_PROGRAM = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, kernel_name="python3", timeout=240).execute()
print(json.dumps([output for cell in notebook.cells for output in cell.get("outputs", [])]))
"""


def run_notebook(path: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the outputs of all cells of a notebook that is run in a folder; the test is skipped without Jupyter."""
    pytest.importorskip("nbclient", reason="notebooks are run with nbclient")
    pytest.importorskip("ipykernel", reason="notebooks run in a kernel of ipykernel")
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    outputs: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outputs
