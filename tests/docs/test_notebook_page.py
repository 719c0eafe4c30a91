"""The notebook of the docs goes from a wrong function to a right one, in a real kernel."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from goldformer.adapters.notebook import read_notebook, write_source
from repository import REPOSITORY

nbformat = pytest.importorskip("nbformat", reason="notebooks are read with nbformat")
pytest.importorskip("nbclient", reason="notebooks are run with nbclient")
pytest.importorskip("ipykernel", reason="notebooks run in a kernel of ipykernel")

NOTEBOOK = REPOSITORY / "docs" / "first_check.ipynb"

#: In a process of its own: the packages of Jupyter leave sockets and warnings behind.
PROGRAM = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
print(json.dumps([output for cell in notebook.cells for output in cell.get("outputs", [])]))
"""


def test_the_notebook_goes_from_a_wrong_function_to_a_right_one(tmp_path):
    assert all(not cell.get("outputs") for cell in nbformat.read(NOTEBOOK, as_version=4).cells), "clear the outputs"
    command = [sys.executable, "-c", PROGRAM, str(NOTEBOOK)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert [output["output_type"] for output in shown] == ["execute_result"] * 3
    wrong, right, verdict = (output["data"] for output in shown)
    assert "scale-missing" in wrong["text/html"]
    assert wrong["text/plain"].startswith("✗ scaled_dot_product_attention: ")
    assert '<div class="goldformer-card conforms">' in right["text/html"]
    assert verdict["text/plain"] == "True"


def test_the_notebook_is_a_submission_too():
    source = write_source(read_notebook(NOTEBOOK.read_bytes(), NOTEBOOK.name)).decode()
    assert source.count("def scaled_dot_product_attention") == 2
    assert "goldformer.check" not in source
