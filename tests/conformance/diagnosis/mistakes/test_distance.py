"""Each mistake in what the distance between positions decides gives what PyTorch code with it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "distance"]
COMPONENTS = {"sliding_window_mask", "alibi_bias", "position_ids"}
ONES = torch.ones(5, 5, dtype=torch.bool)
SLOPES = torch.tensor([1 / 16, 1 / 256])[:, None, None]
BEHIND = torch.arange(3)[:, None] - torch.arange(5)
WORDS = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]).bool()
COUNTED, PLACES = WORDS.cumsum(-1) - 1, torch.arange(4).expand(2, -1)
WINDOW = {"q_seq": 5, "kv_seq": 5, "window": 2}

#: What code with each mistake gives in a call.
WRITTEN: dict[str, tuple[str, dict[str, Any], Any]] = {
    "window-two-sided": ("sliding_window_mask", WINDOW, ONES.triu(-1).tril(1)),
    "window-sign": ("sliding_window_mask", WINDOW, ONES.tril()),
    "window-one-short": ("sliding_window_mask", WINDOW, torch.eye(5, dtype=torch.bool)),
    "alibi-sign": ("alibi_bias", {"like": np.zeros((2, 3, 5))}, SLOPES * BEHIND),
    "alibi-slope-exponent": ("alibi_bias", {"like": np.zeros((2, 3, 5))}, -16 * SLOPES * BEHIND),
    "alibi-decode-zero": ("alibi_bias", {"like": np.zeros((2, 1, 5))}, torch.zeros(2, 1, 5)),
    "position-ids-shared": ("position_ids", {"mask": WORDS.numpy()}, PLACES),
    "position-ids-from-one": ("position_ids", {"mask": WORDS.numpy()}, COUNTED + 1),
    "position-ids-first-row": ("position_ids", {"mask": WORDS.numpy()}, COUNTED[:1].expand(2, -1)),
    "position-ids-batch-axis": ("position_ids", {"mask": WORDS.numpy()}, WORDS.cumsum(0) - 1),
    "position-ids-padding-subtracted": (
        "position_ids",
        {"mask": WORDS.numpy()},
        PLACES - (~WORDS).sum(-1, keepdim=True),
    ),
    # Queries at 2 and 3 of four keys, of which the range has only the first.
    "alibi-offset-range": (
        "alibi_bias",
        {"like": np.zeros((2, 3, 4))},
        -SLOPES * (torch.arange(1, 3)[:, None] - torch.arange(4)),
    ),
    "alibi-half-precision": (
        "alibi_bias",
        {"like": np.zeros((1, 1, 2060))},
        -(2060 - torch.arange(2060, dtype=torch.float16)).double().reshape(1, 1, -1) / 256,
    ),
}


def test_every_mistake_of_the_catalogue_is_made(spec):
    assert {m.id for m in spec.mistakes.values() if m.component in COMPONENTS} == {*MISTAKES} == {*WRITTEN}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_the_result_is_that_of_code_with_the_mistake(mistake):
    component, arguments, expected = WRITTEN[mistake]
    returned = getattr(implementations()[mistake].make(), component)(**arguments)
    seen = WORDS.numpy() if component == "position_ids" else ...  # padding has what the convention says
    if mistake == "position-ids-first-row":
        seen = np.array([[False, False, True, True]] * 2)  # in both rows the padding of the first
    np.testing.assert_array_equal(returned[seen], np.asarray(expected)[seen])


def test_the_forms_of_alibi_differ_by_a_constant_in_each_row_at_the_keys_up_to_the_query():
    like = np.zeros((3, 4, 4))
    plain = build_textbook().alibi_bias(like)
    for form in ("absolute", "key_index", "from_last_key"):
        shift = build_textbook(OPTIONS["alibi_form", form]).alibi_bias(like) - plain
        for row in range(4):
            np.testing.assert_allclose(shift[:, row, : row + 1], shift[:, row, :1] + np.zeros(row + 1), atol=1e-15)


def test_geometric_slopes_are_one_sequence_of_all_heads():
    bias = build_textbook(OPTIONS["alibi_slopes", "geometric"]).alibi_bias(np.zeros((3, 2, 2)))
    np.testing.assert_allclose(-bias[:, 1, 0], [2 ** (-8 * h / 3) for h in (1, 2, 3)], rtol=1e-15)


def test_a_window_that_does_not_count_oneself_shows_one_key_more():
    made = build_textbook(OPTIONS["window_size", "before_oneself"])
    np.testing.assert_array_equal(made.sliding_window_mask(**WINDOW), ONES.tril().triu(-2))


def test_a_negative_window_is_refused():
    with pytest.raises(ValueError, match="window: -1, but a window has no negative number of keys"):
        build_textbook().sliding_window_mask(q_seq=2, kv_seq=2, window=-1)
