"""Greedy decoding and beam search done otherwise: no case and no property may accuse them."""

from __future__ import annotations

import pytest

from authors import decoders, from_scratch, functional, mingpt
from controls import NUMPY, Control, in_each_dtype

GREEDY, BEAM = "greedy_decode", "beam_search"
SET_ASIDE = {"beam_finish": "set_aside"}
FULL = ("float64", "float32")

CONTROLS = [
    Control(
        "a_cache_and_one_batch",
        {GREEDY: decoders.greedy_with_a_cache, BEAM: decoders.beam_in_one_batch},
        besides={"transformer": functional.transformer},
    ),
    Control(
        "whole_readings_and_a_heap",
        {GREEDY: decoders.greedy_whole_readings, BEAM: decoders.beam_on_a_heap},
        {"empty_row": "nan"},
        dtypes=("float32", "float16"),
        besides={"transformer": mingpt.transformer},
    ),
    Control(
        "read_again_and_sorted",
        {GREEDY: decoders.greedy_read_again_at_the_end, BEAM: decoders.beam_of_tensors_sorted},
        dtypes=("float64", "bfloat16"),
        besides={"transformer": functional.transformer},
    ),
    *(
        # In half precision rounding decides what nearly all of these cases and properties ask for.
        Control(f"set_aside_by_{name}", {BEAM: decoders.beam_with_finished_list(penalty)}, declared, FULL)
        for name, penalty, declared in (
            ("the_sum", lambda words: 1, SET_ASIDE),
            ("the_mean", float, SET_ASIDE | {"length_penalty": "mean"}),
            ("gnmt", lambda words: ((5 + words) / 6) ** 0.6, SET_ASIDE | {"length_penalty": "gnmt"}),
        )
    ),
    Control(
        "lists_in_numpy",
        {GREEDY: decoders.greedy_in_numpy},
        dtypes=NUMPY,
        arrays="numpy",
        besides={"transformer": from_scratch.transformer},
    ),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_decoding_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)
