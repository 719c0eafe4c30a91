"""Failures that depend on one size: right in every small call, wrong in most large ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.diagnosis.finding import DEPENDS_ON_SIZE, Finding
from goldformer.conformance.judging.verdict import Limit, Status, Verdict
from goldformer.spec import Case, Spec

#: What a size counts, by the name of its axis: those that code cuts into blocks come first.
SIZE_WORDS: Final[Mapping[str, str]] = {
    "kv_seq": "{} keys",
    "q_seq": "{} queries",
    "source_seq": "{} source tokens",
    "seq": "{} tokens",
    "max_length": "{} steps",
    "heads": "{} heads",
    "d_k": "head width {}",
    "d_model": "width {}",
    "d_ff": "hidden width {}",
    "n": "rows of {}",
    "vocab": "{} words",
}
#: The shortest block of kernels.
SHORTEST: Final = 16
#: The fewest right cases of smaller sizes that show that small calls are right.
_FEWEST: Final = 5
#: The most axes that are named.
_MOST_AXES: Final = 2
#: The advice for wrong results, and for code that only raises.
_WRONG_BLOCK: Final = "Look at the end of a block, of a tile or of a table"
_FIXED_LENGTH: Final = "If it is built for no more, let the adapter raise NotImplementedError for larger calls"


@dataclass(frozen=True, slots=True)
class _Split:
    """The largest size of an axis up to which all cases are right, the smallest wrong one, and the number of each."""

    axis: str
    right: int
    wrong: int
    right_cases: int
    wrong_cases: int
    exceptions: int


def describe_size(judged: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield the size on which the failures of a component depend, if they do."""
    compared = [v for v in judged if v.asks == "values" and v.check in spec.cases]
    failures = [v for v in compared if v.bad]
    limits = {d.limit for v in failures for d in v.differences}
    if limits and Limit.ELEMENT not in limits:
        return  # what only many elements together show, it shows in large calls
    bad = [spec.cases[v.check] for v in failures]
    good = [spec.cases[v.check] for v in compared if v.status is Status.PASSED]
    raises = all(v.reason == "raised" for v in failures)
    found = (_split(axis, bad, good) for axis in SIZE_WORDS)
    # No block, tile or table is as short as the calls in which two tokens are too few to show a mistake.
    splits = [split for split in found if split is not None and (raises or split.wrong > SHORTEST)]
    if splits:
        # An axis that explains more leaves fewer large calls that are right.
        best = min(splits, key=lambda split: split.exceptions)
        # Axes may grow together in the cases.
        equal = [split for split in splits if split.exceptions == best.exceptions][:_MOST_AXES]
        right = " and ".join(SIZE_WORDS[split.axis].format(split.right) for split in equal)
        wrong = " or ".join(SIZE_WORDS[split.axis].format(split.wrong) for split in equal)
        count = best.wrong_cases + best.exceptions
        text = (
            f"Right in all {best.right_cases} cases of up to {right}, {'raises' if raises else 'wrong'} in "
            f"{best.wrong_cases} of {count} from {wrong} on. {_FIXED_LENGTH if raises else _WRONG_BLOCK}"
        )
        yield Finding(DEPENDS_ON_SIZE, text)


def _split(axis: str, bad: Sequence[Case], good: Sequence[Case]) -> _Split | None:
    """Return how one size separates failing cases from others; None if it does not."""
    if not bad or not all(axis in case.sizes for case in bad):
        return None
    wrong = min(case.sizes[axis] for case in bad)
    smaller = [case.sizes[axis] for case in good if case.sizes.get(axis, wrong) < wrong]
    exceptions = sum(case.sizes.get(axis, 0) >= wrong for case in good)
    if len(smaller) < _FEWEST or exceptions > len(bad):
        return None
    return _Split(axis, max(smaller), wrong, len(smaller), len(bad), exceptions)
