"""The finding that an implementation computes in a coarser dtype than the one it is called with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.diagnosis.printed import find_printed, write_printed
from goldformer.conformance.diagnosis.suspects import TO_FLOAT32
from goldformer.conformance.judging.verdict import Verdict
from goldformer.spec import Spec
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF, is_half

#: Half of the digits between float64 and float32: a result that lost more is nearer to float32, on a logarithmic scale.
_HALF_WAY: Final = math.sqrt(UNIT_ROUNDOFF["float32"] / UNIT_ROUNDOFF["float64"])

_OF_SCORES: Final = "√d_k as a float32 tensor, or a softmax in float32"
#: Where float32 enters code that computes in float64, as seen in public implementations.
_ENTRANCES: Final = {
    "positional_encoding": "a table of positions, or its frequencies, made in float32",
    "softmax": "a cast to float32",
    "scaled_dot_product_attention": _OF_SCORES,
    "fused_multi_head_attention": _OF_SCORES,
    "multi_head_attention": _OF_SCORES,
    "single_head_attention": _OF_SCORES,
}
_ANYWHERE: Final = "a constant, a square root or a cast in float32"
#: A formula that loses some of the digits of float64, by component; float32 by itself loses more.
_LOGSUMEXP: Final = "exp(scores − logsumexp(scores)), whose logarithm is rounded at the size of the scores"
_LOSSY: Final = {"softmax": _LOGSUMEXP} | {
    component: f"{entrance}, or {_LOGSUMEXP}" for component, entrance in _ENTRANCES.items() if entrance == _OF_SCORES
}


def find_precision(verdicts: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield the findings that results are right only to coarser sums or a coarser dtype: where that enters, how much.

    These are the components with such results whose parts have none.
    """
    tolerated = [v for v in _drop_mistaken(verdicts) if v.reason == "precision"]
    if sums := [v for v in tolerated if is_half(v.dtype)]:
        yield _describe_sums(sums)
    coarse = [v for v in tolerated if not is_half(v.dtype)]
    if not coarse:
        return
    affected = {v.component for v in coarse}
    entered = [c for c in spec.components if c in affected and affected.isdisjoint(spec.list_dependencies(c))]
    ratios = [v.ratio for v in coarse if v.ratio is not None]
    worst = max(ratios)
    first = next(v for v in coarse if v.component == entered[0])
    dtype = first.dtype
    # Float32 loses as much everywhere; a lossy formula does so only where the scores are very large.
    in_float32 = median(ratios) > _HALF_WAY
    label = "Computes in float32" if in_float32 else f"Loses digits in {dtype}"
    known = _ENTRANCES if in_float32 else _ENTRANCES | _LOSSY
    causes = " or ".join(dict.fromkeys(known.get(c, _ANYWHERE) for c in entered))
    results = f"{len(coarse)} result{'s' if len(coarse) != 1 else ''} in {dtype}"
    are = "are" if len(coarse) != 1 else "is"
    text = (
        f"{results} {are} right only to float32, first seen in {' and '.join(entered)} ({first.check}); "
        f"up to {math.log10(worst):.1f} digits are lost. Look for {causes}. "
        "Only --strict, or strict=True in Python, fails it"
    )
    checks = {v.check for v in coarse}
    errata = {e.id: e for c in entered for e in find_printed(TO_FLOAT32, c, checks, spec)}
    text += f". Such code is printed in {write_printed(errata.values())}" if errata else ""
    yield Finding(label, text, inner=False)


def _drop_mistaken(verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts of components that are not wrong in the dtype, or that a lossy formula makes wrong in it.

    Where another mistake shows little, such as another eps, a result is right to a coarser dtype, whatever the code
    computes in.
    """
    wrong = {(v.component, v.dtype) for v in verdicts if v.bad}
    yield from (v for v in verdicts if (v.component, v.dtype) not in wrong or v.component in _LOSSY)


def _describe_sums(coarse: Sequence[Verdict]) -> Finding:
    """Return the finding that sums run in a half type: in long ones, small terms get lost."""
    first, count = coarse[0], len(coarse)
    are = "results are" if count != 1 else "result is"
    text = (
        f"{count} {are} right only to sums that run in {first.dtype}, first seen in {first.component} ({first.check}). "
        "Add in float32, as GPUs do. Only --strict, or strict=True in Python, fails it"
    )
    return Finding("Coarse sums", text, inner=False)
