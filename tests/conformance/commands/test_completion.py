"""Completion in a shell: adapters, components, ids and dtypes, and the last of several words between commas."""

from __future__ import annotations

import pytest
from click.shell_completion import BashComplete

from goldformer.conformance.cli import main


def complete(*words):
    *before, incomplete = words
    found = BashComplete(main, {}, "goldformer", "_GOLDFORMER_COMPLETE").get_completions(before, incomplete)
    return [(item.type, item.value) for item in found]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["che"], ["check"]),
        (["check", "ref"], ["reference"]),
        (["compare", "reference", "textb"], ["textbook"]),
        (["check", "reference", "--component", "layer"], ["layer_norm"]),
        (["check", "reference", "--component", "softmax,layer"], ["softmax,layer_norm"]),
        (["check", "reference", "--case", "sm-one-r"], ["sm-one-row-by-hand"]),
        (["check", "reference", "--property", "sm-sim"], ["sm-simplex"]),
        (["check", "reference", "--dtype", "float32,b"], ["float32,bfloat16"]),
        (["derive", "--case", "sm-one-r"], ["sm-one-row-by-hand"]),
        (["explain", "SDPA-1"], ["SDPA-1", "SDPA-10"]),
    ],
    ids=" ".join,
)
def test_words_are_completed(words, completed):
    assert {value for _, value in complete(*words)} >= set(completed)
    assert all(value.startswith(words[-1]) for _, value in complete(*words))


def test_the_shell_lists_files_where_an_adapter_is_one():
    assert complete("check", "my_ad") == [("file", "my_ad")]
