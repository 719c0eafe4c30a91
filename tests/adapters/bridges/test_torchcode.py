"""The bridge to TorchCode: right code conforms in files and notebooks, mistakes are named, templates are absent."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import goldformer
from goldformer.adapters import AdapterError, find_adapter
from goldformer.adapters.bridges.torchcode import TorchCode
from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main
from repository import REPOSITORY

SOLUTION = (REPOSITORY / "tests" / "support" / "exercises" / "torchcode.py").read_text(encoding="utf-8")

#: The site has no problem of attention with a mask that is not causal.
PARTIAL = {"scaled_dot_product_attention", "multi_head_attention"}
COMPONENTS = {
    *PARTIAL,
    "softmax",
    "layer_norm",
    "rms_norm",
    "gated_feed_forward",
    "token_embedding",
    "cross_entropy",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with forget_modules(tmp_path):
        yield tmp_path


def write_notebook(path, *cells):
    made = [
        {"cell_type": "code", "source": text, "metadata": {}, "outputs": [], "execution_count": None} for text in cells
    ]
    book = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps(book), encoding="utf-8")


def run(*words):
    return CliRunner().invoke(main, ["check", *words])


def test_right_solutions_conform_but_for_the_masks_that_no_problem_has(folder):
    (folder / "mine.py").write_text(SOLUTION, encoding="utf-8")
    result = run("--bridge", "torchcode", "mine.py")
    assert result.exit_code == 3, result.output
    conforming = {line.split()[0] for line in result.stdout.splitlines() if " conforms (" in line}
    partial = {line.split()[0] for line in result.stdout.splitlines() if " partial: nothing wrong was found" in line}
    assert (conforming, partial) == (COMPONENTS - PARTIAL, PARTIAL)
    assert run("torchcode:mine.py", "--allow-partial", "-q").exit_code == 0


MISTAKES = {
    "scale-missing": ("scaled_dot_product_attention", " / math.sqrt(Q.size(-1))", ""),
    "softmax-unstable": ("softmax", "x - x.max(dim=dim, keepdim=True).values", "x"),
    "glu-sum": ("gated_feed_forward", "(self.gate_proj(x)) * self", "(self.gate_proj(x)) + self"),
    "head-merge-view": ("multi_head_attention", "attn.transpose(1, 2).reshape", "attn.reshape"),
    "scale-no-root": ("scaled_dot_product_attention", " / math.sqrt(Q.size(-1))", " / Q.size(-1)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_them_is_named(mistake, folder):
    component, old, new = MISTAKES[mistake]
    assert old in SOLUTION
    (folder / "mine.py").write_text(SOLUTION.replace(old, new), encoding="utf-8")
    result = run("torchcode:mine.py", "--component", component)
    assert result.exit_code == 1
    assert mistake in result.stdout


NORM = """
def rms_norm(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
"""
TEMPLATE = """
class SwiGLUMLP(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()

    def forward(self, x):
        pass
"""


def test_a_folder_of_notebooks_is_read_where_it_defines_a_part(folder, golden_cases):
    write_notebook(folder / "08_rmsnorm.ipynb", "import torch", NORM, "from torch_judge import check\ncheck('rmsnorm')")
    write_notebook(folder / "02_softmax.ipynb", "def my_softmax(x, dim=-1):\n    pass  # Replace this\n")
    write_notebook(folder / "15_mlp.ipynb", "from torch import nn", TEMPLATE)
    write_notebook(folder / "35_bpe.ipynb", "import not_here_at_all\nnot_here_at_all.run()")
    result = run("torchcode:.")
    assert result.exit_code == 0, result.output
    number = golden_cases("rms_norm")
    assert f" conforms ({number} of {number} cases apply)" in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("Not implemented: "))
    assert "softmax" in result.stdout
    assert "rms_norm" not in line


def test_gradients_are_judged_because_the_site_asks_for_them(folder):
    old = "return gamma * (x - mean) / torch.sqrt(var + eps) + beta"
    assert old in SOLUTION
    (folder / "mine.py").write_text(SOLUTION.replace(old, f"return ({old.removeprefix('return ')}).detach()"), "utf-8")
    report = goldformer.check("torchcode:mine.py", "layer_norm")
    assert {verdict.reason for verdict in report.failures if verdict.asks == "gradients"} == {"no-gradient"}
    assert {verdict.asks for verdict in report.failures} == {"gradients"}


def test_it_has_every_component_that_is_listed(spec):
    assert {name for name in spec.contracts if hasattr(TorchCode, name)} == COMPONENTS


def refuse(name, spec):
    with pytest.raises(AdapterError) as caught:
        find_adapter(name, spec)
    return str(caught.value)


def test_two_files_with_one_name_are_a_question(folder, spec):
    for name in ("one.py", "two.py"):
        (folder / name).write_text("def rms_norm(x, weight):\n    return x * weight\n", encoding="utf-8")
    assert refuse("torchcode:.", spec) == ".: two files define rms_norm, one of them two.py: give one of the files"
    assert find_adapter("torchcode:one.py", spec).functions


def test_what_is_not_there_or_has_no_part_is_said(folder, spec):
    assert refuse("torchcode:no.ipynb", spec) == (
        "no.ipynb: no such file or folder. The bridge torchcode takes a notebook, a Python file, or a folder of them"
    )
    (folder / "other.py").write_text("def relu(x):\n    return x\n", encoding="utf-8")
    assert refuse("torchcode:.", spec) == (
        ".: it has none of the functions my_softmax, my_layer_norm, rms_norm and 6 more: give the file or the folder "
        "of the exercise that defines them"
    )


def test_other_parameters_are_named_with_their_line(folder, spec):
    (folder / "mine.py").write_text("def rms_norm(x):\n    return x\n", encoding="utf-8")
    assert refuse("torchcode:mine.py", spec) == (
        "mine.py:1: rms_norm(x) cannot be called: too many positional arguments. Write it with the parameters of the "
        "exercise: rms_norm(x, weight)"
    )
