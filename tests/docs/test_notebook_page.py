"""The notebook of the docs goes from a wrong function to a right one, in a real kernel."""

from __future__ import annotations

import nbformat

from goldformer.adapters.notebook import read_notebook, write_source
from kernels import run_notebook
from repository import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "first_check.ipynb"


def test_the_notebook_goes_from_a_wrong_function_to_a_right_one(tmp_path):
    assert all(not cell.get("outputs") for cell in nbformat.read(NOTEBOOK, as_version=4).cells), "clear the outputs"
    shown = run_notebook(NOTEBOOK, tmp_path)
    assert [output["output_type"] for output in shown] == ["execute_result"] * 3
    wrong, right, verdict = (output["data"] for output in shown)
    assert "scale-missing" in wrong["text/html"]
    assert wrong["text/plain"].startswith("✗ scaled_dot_product_attention: ")
    assert '<div class="goldformer-card conforms">' in right["text/html"]
    assert verdict["text/plain"] == "True"


def test_the_notebook_is_a_submission_too():
    source = write_source(read_notebook(NOTEBOOK.read_bytes(), NOTEBOOK.name)).decode()
    assert source.count("def scaled_dot_product_attention") == 2
    assert "goldformer.check" not in source.partition("# not read: ")[0]
