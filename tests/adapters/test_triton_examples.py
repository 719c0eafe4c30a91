"""The Triton kernels of the examples conform by Triton's interpreter, and mistakes that are put into them are named.

`make libraries` installs Triton and runs this file; elsewhere it is skipped where Triton is missing. Each check has a
process of its own: Triton reads TRITON_INTERPRET when it is first imported.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from repository import REPOSITORY
from written_pages import blocks, commands, must_show

EXAMPLES = REPOSITORY / "adapters" / "examples" / "triton"
PAGE = (REPOSITORY / "docs" / "kernels.md").read_text(encoding="utf-8")
KERNEL = "flash_attention.py"

#: Cases that have many blocks, or less than one; with other masks, and with a gradient.
CASES = (
    "sdpa-walkthrough-3x2", "sdpa-cross-lengths", "sdpa-heads-causal", "sdpa-mask-per-query", "sdpa-empty-row",
    "sdpa-four-axes", "sdpa-large-d-k", "sdpa-gradient-masked", "sdpa-size-keys-513", "sdpa-size-causal-513",
    "sdpa-size-padding-129", "sdpa-size-blocks-145", "sdpa-size-early-peak-129",
)  # fmt: skip

#: Lines of the kernel, each with a mistake in its place, and the id under which the report names it.
MISTAKES = {
    "no rescale": (
        "rescale = tl.exp(highest - shift)",
        'rescale = tl.where(highest == float("-inf"), 0.0, 1.0)',
        "softmax.blocks.not-rescaled-32",
    ),
    "dropped tail": ("end = sizes[1]", "end = sizes[1] // BLOCK * BLOCK", "softmax.blocks.end-or-zeros-32"),
    "wrong mask block": (
        "offsets = locate(mask_strides, pair, heads, queries, keys)",
        "offsets = locate(mask_strides, pair, heads, queries, keys % 32)",
        "scaled_dot_product_attention.blocks.first-mask-32",
    ),
    "missing scale": ('"scale": d_k**-0.5', '"scale": 1.0', "scale-missing"),
}

#: One row too many is read: what lies after an array decides what comes out.
BEYOND = (
    ("inside = (rows[:, None] < num_rows)", "inside = (rows[:, None] <= num_rows)"),
    ("(keys[None, :] < sizes[1])", "(keys[None, :] <= sizes[1])"),
)

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")


def run(*words, folder):
    """The exit status and the output of a module of Python, with kernels by the interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def check(folder, *words):
    """The report of the adapter in a folder, as JSON."""
    _, output, complaints = run("goldformer", "check", str(folder / "adapter.py"), "--json", "-", *words, folder=folder)
    assert output, complaints
    return json.loads(output)


@pytest.fixture
def changed(tmp_path):
    """Return a function that copies the examples, with lines of the kernel replaced."""

    def change(*replacements):
        folder = tmp_path / "kernels"
        shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
        code = (folder / KERNEL).read_text(encoding="utf-8")
        for right, wrong in replacements:
            assert right in code
            # The first one is in the forward pass, or in what all kernels share.
            code = code.replace(right, wrong, 1)
        (folder / KERNEL).write_text(code, encoding="utf-8")
        return folder

    return change


@needs_triton
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_kernels_conform_forward_and_backward(dtype):
    report = check(EXAMPLES, "--dtype", dtype)
    assert {part["component"]: part["state"] for part in report["components"]} == {
        "layer_norm": "conforms",
        "scaled_dot_product_attention": "conforms",
    }
    gradients = [v for v in report["verdicts"] if v["asks"] == "gradients" and v["status"] == "passed"]
    assert {v["component"] for v in gradients} == {"layer_norm", "scaled_dot_product_attention"}
    assert len(gradients) > 8
    assert not [v for v in report["verdicts"] if v["status"] not in ("passed", "skipped")]


@needs_triton
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_kernel_is_named(mistake, changed):
    right, wrong, name = MISTAKES[mistake]
    report = check(changed((right, wrong)), *(word for case in CASES for word in ("--case", case)))
    assert report["outcome"] == "fails"
    assert [(found["label"], found["mistakes"]) for found in report["findings"] if found.get("mistakes")] == [
        ("Mistake found", [name])
    ]


@needs_triton
def test_a_row_that_is_read_beyond_an_array_is_named(changed):
    report = check(changed(*BEYOND), "--component", "scaled_dot_product_attention")
    assert report["outcome"] == "fails"
    assert [found["mistakes"] for found in report["findings"] if found["label"] == "Mistake found"] == [
        ["reads-around"]
    ]


@needs_triton
def test_the_commands_of_the_page_give_what_it_shows(tmp_path):
    shutil.copy(EXAMPLES / KERNEL, tmp_path)
    ran = []
    for kind, block in blocks(PAGE):
        if kind == "python":
            (name,) = re.findall(r"\A# ([\w.]+)\n", block)
            (tmp_path / name).write_text(block, encoding="utf-8")
        for words, status, shown in commands(block) if kind == "console" else ():
            program = words[1:] if "=" in words[0] else words
            if program[1] == "baseline":
                continue  # half a minute more
            got, output, complaints = run(*program, folder=tmp_path)
            assert got == status, output + complaints
            must_show(output, shown, " ".join(program))
            ran.append(program[0])
    assert ran == ["goldformer", "pytest"]


def test_the_adapter_of_the_page_has_at_most_ten_lines():
    (block,) = (block for kind, block in blocks(PAGE) if block.startswith("# kernel_adapter.py"))
    assert len([line for line in block.splitlines()[1:] if line]) <= 10
