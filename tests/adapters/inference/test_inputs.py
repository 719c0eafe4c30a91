"""Masks, as the code of a class or function tells them."""

from __future__ import annotations

import inspect

import pytest

from goldformer.adapters.inference.inputs import ForwardArguments, list_arguments, says_ignore
from goldformer.adapters.inference.target import Argument, Target
from goldformer.spec import load_spec

ARGUMENTS = ForwardArguments({"q": "query", "k": "key", "v": "value", "m": "mask"})


def says(comment, monkeypatch):
    monkeypatch.setattr(Target, "text", f'def attend(q, k, v, m):\n    """{comment}"""\n')
    return says_ignore(Target(None, "attend", ""), ARGUMENTS)


@pytest.mark.parametrize(
    "comment",
    [
        "m: True where a key is ignored",
        "m: True = masked out, False = keep",
        "m is True for padding",
        "True means: hide this key",
        "Boolean mask. True = block this position",
        "True marks the keys to exclude",
    ],
)
def test_a_comment_says_that_true_hides_a_key(comment, monkeypatch):
    assert says(comment, monkeypatch)


@pytest.mark.parametrize(
    "comment",
    [
        "m: True = may attend, False = ignored",
        "m: True means keep and False means mask",
        "m is True where the key is not padding",
        "m is True for non-padded keys",
        "m: True is unmasked",
        "m: True is not blocked",
        "m: True is unblocked",
        "m: the mask",
    ],
)
def test_a_comment_that_says_the_opposite_or_nothing_is_no_permission(comment, monkeypatch):
    assert not says(comment, monkeypatch)


def name_masks(names, monkeypatch):
    """Return the masks of a decoder layer, and those of its padded keys, by ours; None if they are not told apart."""
    given = [Argument(name, inspect.Parameter.empty) for name in ("x", "memory", *names.split())]
    monkeypatch.setattr(Target, "list_arguments", lambda _: given)
    found = list(list_arguments(Target(type, "Layer", ""), load_spec().contracts["decoder_layer"]))
    return [(one.masks, one.paddings) for one in found] or None


@pytest.mark.parametrize(
    ("names", "masks", "paddings"),
    [
        ("src_mask tgt_mask", {"self_mask": "tgt_mask", "memory_mask": "src_mask"}, {}),
        ("look_ahead_mask padding_mask", {"self_mask": "look_ahead_mask", "memory_mask": "padding_mask"}, {}),
        (
            "tgt_mask tgt_key_padding_mask memory_key_padding_mask",
            {"self_mask": "tgt_mask"},
            {"self_mask": "tgt_key_padding_mask", "memory_mask": "memory_key_padding_mask"},
        ),
        (
            "src_mask tgt_mask tgt_pad_mask",
            {"self_mask": "tgt_mask", "memory_mask": "src_mask"},
            {"self_mask": "tgt_pad_mask"},
        ),
    ],
)
def test_the_masks_of_a_decoder_layer_are_told_apart_by_names(names, masks, paddings, monkeypatch):
    assert name_masks(names, monkeypatch) == [(masks, paddings)]


@pytest.mark.parametrize("names", ["tgt_mask own_mask src_mask", "a_mask b_mask c_mask d_mask e_mask"])
def test_masks_that_names_do_not_tell_apart_are_not_guessed(names, monkeypatch):
    assert name_masks(names, monkeypatch) is None


@pytest.mark.parametrize(
    ("component", "names"),
    [
        ("rotary_embedding", ("x", "freqs_complex")),
        ("layer_norm", ("query", "key", "value")),
    ],
)
def test_arguments_that_say_something_else_are_no_inputs(component, names, monkeypatch):
    arguments = [Argument(name, inspect.Parameter.empty) for name in names]
    monkeypatch.setattr(Target, "list_arguments", lambda self: arguments)
    assert not list(list_arguments(Target(None, "helper", ""), load_spec().contracts[component]))
