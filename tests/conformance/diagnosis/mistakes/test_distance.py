"""Each mistake in what the distance between positions decides gives what PyTorch code with it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldformer.adapters.options import OPTIONS
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "distance"]
COMPONENTS = {"sliding_window_mask"}
ONES = torch.ones(5, 5, dtype=torch.bool)
WINDOW = {"q_seq": 5, "kv_seq": 5, "window": 2}

#: What code with each mistake gives in a call.
WRITTEN = {
    "window-two-sided": ("sliding_window_mask", WINDOW, ONES.triu(-1).tril(1)),
    "window-sign": ("sliding_window_mask", WINDOW, ONES.tril()),
    "window-one-short": ("sliding_window_mask", WINDOW, torch.eye(5, dtype=torch.bool)),
}


def test_every_mistake_of_the_catalogue_is_made(spec):
    assert {m.id for m in spec.mistakes.values() if m.component in COMPONENTS} == {*MISTAKES} == {*WRITTEN}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_the_result_is_that_of_code_with_the_mistake(mistake):
    component, arguments, expected = WRITTEN[mistake]
    np.testing.assert_array_equal(getattr(implementations()[mistake].make(), component)(**arguments), expected)


def test_a_window_that_does_not_count_oneself_shows_one_key_more():
    made = build_textbook(OPTIONS["window_size", "before_oneself"])
    np.testing.assert_array_equal(made.sliding_window_mask(**WINDOW), ONES.tril().triu(-2))


def test_a_negative_window_is_refused():
    with pytest.raises(ValueError, match="window: -1, but a window has no negative number of keys"):
        build_textbook().sliding_window_mask(q_seq=2, kv_seq=2, window=-1)
