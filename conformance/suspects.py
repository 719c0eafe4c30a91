"""Which catalogued mistakes fit what failed and what passed.

Every case lists the mistakes that it reveals. A mistake is ruled out by one passing case that would
have revealed it; among the rest, those that account for the most failing cases come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from goldformer.conformance.verdict import Status, Verdict
from goldformer.spec import Mistake, Spec


@dataclass(frozen=True, slots=True)
class Suspect:
    """A mistake that fits: it would show in `explains` of the `failing` failing cases."""

    mistake: Mistake
    explains: int
    failing: int


def suspects(verdicts: Iterable[Verdict], component: str, spec: Spec) -> list[Suspect]:
    """The mistakes that fit the golden cases of one component, best first."""
    judged = [v for v in verdicts if v.component == component and v.kind == "case"]
    passed = {m for v in judged if v.status is Status.PASSED for m in v.catches}
    failed = [v for v in judged if v.bad]
    counts = Counter(m for v in failed for m in v.catches if m not in passed)
    found = [Suspect(spec.mistakes[m], count, len(failed)) for m, count in counts.items()]
    return sorted(found, key=lambda s: (-s.explains, s.mistake.id))


def failing_roots(verdicts: Iterable[Verdict], spec: Spec) -> tuple[list[str], list[str]]:
    """Components that fail though all they depend on holds, and those that fail along with one of these."""
    failing = {v.component for v in verdicts if v.bad}

    def blamed(component: str) -> bool:
        return any(d in failing or blamed(d) for d in spec.contracts[component].depends_on)

    ordered = [c for c in spec.components if c in failing]
    return [c for c in ordered if not blamed(c)], [c for c in ordered if blamed(c)]
