"""Masks, as the code of a class or function tells them."""

from __future__ import annotations

import pytest

from goldformer.adapters.inference.inputs import ForwardArguments, says_ignore
from goldformer.adapters.inference.target import Target

ARGUMENTS = ForwardArguments({"q": "query", "k": "key", "v": "value"}, {"mask": "m"})


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
        "m: the mask",
    ],
)
def test_a_comment_that_says_the_opposite_or_nothing_is_no_permission(comment, monkeypatch):
    assert not says(comment, monkeypatch)
