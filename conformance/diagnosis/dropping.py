"""Dropout that stays on in evaluation, told from other results that change from call to call.

What it leaves of a result is 0, or what is right times one factor. A call in which each result depends on one dropped
number shows just that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.calls import compute
from goldformer.conformance.diagnosis.causes import DROPOUT
from goldformer.conformance.judging.applicability import find_working_case
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.invoke import Arguments, Array, CallProblem, read_arguments
from goldformer.conformance.judging.verdict import NONDETERMINISM, Verdict
from goldformer.conformance.properties.subject import draw_arguments, with_params
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF

#: Results: enough that a dropout of 0.02 drops some of them.
_SAMPLES: Final = 256
#: The sizes of a call in which a query has one key, and a network as many hidden units as channels.
_SIZES: Final[Mapping[str, Mapping[str, int]]] = {
    "scaled_dot_product_attention": {"q_seq": 1, "kv_seq": 1, "d_k": 3, "d_v": 2},
    "multi_head_attention": {
        "q_seq": 1, "kv_seq": 1, "d_k": 3, "d_v": 3, "heads": 2, "d_query": 6, "d_key": 6, "d_value": 6, "d_model": 6,
    },
    "fused_multi_head_attention": {"seq": 1, "d_k": 3, "heads": 2, "d_input": 6},
    "feed_forward": {"seq": 1, "d_model": 6, "d_ff": 6},
}  # fmt: skip
#: The last map of a component, which hands each number on as it is.
_LAST: Final = ("w_o", "w_2")
_BIASES: Final = ("b_o", "b_2")
#: How far the share of zeros may be from the rate, in standard deviations of as many draws.
_DEVIATIONS: Final = 8


def name_dropout(judgements: Sequence[Judgement | None], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return verdicts in which those of results that differ from call to call name dropout where it explains them.

    This comes before any diagnosis: it says what the check saw.
    """
    return [
        replace(v, catches=(DROPOUT,), message=f"{v.message}: {found}")
        if j is not None and v.bad and v.catches == (NONDETERMINISM,) and (found := find_dropout(v.component, j.bench))
        else v
        for j, v in zip(judgements, verdicts, strict=True)
    ]


def find_dropout(component: str, bench: Bench) -> str:
    """Return in words what dropout makes of a call; an empty text if the result is not that of dropout."""
    options, output = bench.adapter.options(component, bench.spec), bench.spec.contracts[component].first_output
    try:
        arguments = _make_call(component, bench)
        actual = bench.call(component, arguments).outputs[output]
    except (CallProblem, KeyError):
        return ""
    right = compute(component, arguments, options)[output]
    return _describe(actual, right, 64 * UNIT_ROUNDOFF[bench.rounds_to]) if right.dtype.kind == "f" else ""


def _make_call(component: str, bench: Bench) -> Arguments:
    sizes = _SIZES.get(component)
    if sizes is None:
        return read_arguments(find_working_case(component, bench))
    heads = {"num_heads": sizes["heads"]} if "heads" in sizes else {}
    drawn = draw_arguments(component, bench, {"batch": _SAMPLES, **sizes}, 0, **heads)
    plain = {name: np.eye(len(array)) for name, array in drawn.params.items() if name in _LAST}
    return with_params(drawn, **plain, **{n: a * 0 for n, a in drawn.params.items() if n in _BIASES})


def _describe(actual: Array, right: Array, apart: float) -> str:
    if actual.shape != right.shape:
        return ""
    seen = right != 0
    actual, right = actual[seen], right[seen]
    zero = actual == 0
    dropped = int(zero.sum())
    if not 0 < dropped < len(right):
        return ""
    factor = float(np.median(actual[~zero] / right[~zero]))
    if np.abs(actual - factor * right)[~zero].max() > apart * factor * np.abs(right).max():
        return ""
    share = dropped / len(right)
    rate = 1 - 1 / factor if factor > 1 + apart else share
    if abs(share - rate) > _DEVIATIONS * np.sqrt(rate * (1 - rate) / len(right)):
        return ""
    times = f"{factor:.3g} times what they should be" if factor > 1 + apart else "right"
    return f"{dropped} of {len(right)} results are 0 and the others {times}, as after a dropout of about {rate:.2g}"
