"""The findings of a whole run: the component to fix first, the known mistake that explains it, and the unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from goldformer.conformance.diagnosis.causes import write_hint
from goldformer.conformance.diagnosis.suspects import (
    Explanation,
    Suspect,
    find_failing_roots,
    rank_explanations,
    rank_suspects,
)
from goldformer.conformance.judging.verdict import WITHHELD, Verdict
from goldformer.spec import Spec

_MOST_SUSPECTS = 3
_ABSENT = "raise NotImplementedError in the adapter (a process answers −32001): that call is then skipped"
#: The mistake that only one property can find.
_DIFFERS = "nondeterminism"
#: The labels of the lines that other rooms read.
FIX_FIRST = "Fix first"
#: It reproduces every failing case that was compared: a mistake of the catalogue, or an option that is not declared.
MISTAKE_FOUND = "Mistake found"
OPTION_FOUND = "Option found"
#: It reproduces most failing cases, but not all.
CLOSEST = "Closest known mistake"
#: No passing case rules it out, and no values were compared.
POSSIBLE_CAUSES = "Possible causes"
NOTHING_KNOWN = "Cause unknown"
#: The number of names that are listed; the others are counted.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of the diagnosis; an `inner` one belongs to the component of the finding before it.

    `mistakes` are the ids of the known mistakes that it names.
    """

    label: str
    text: str
    inner: bool = True
    mistakes: tuple[str, ...] = ()


def diagnose(verdicts: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield what to fix first, which known mistakes explain it, and what is not implemented."""
    judged = {c: [v for v in verdicts if v.component == c and v.is_judged] for c in spec.components}
    absent = [c for c, mine in judged.items() if mine and all(v.reason == "not-implemented" for v in mine)]
    roots, followers = find_failing_roots((v for v in verdicts if v.component not in absent), spec)
    explained = {component: _select_explanations(verdicts, component, spec) for component in (*roots, *followers)}
    for component in roots:
        bad = [v for v in judged[component] if v.bad]
        some_pass = len(bad) < len(judged[component])
        yield Finding(FIX_FIRST, component, inner=False)
        yield Finding("First seen", f"{bad[0].check}: {bad[0].message}")
        if bad[0].reason == "raised" and some_pass:
            yield Finding("If it has no such variant", _ABSENT)
        yield from describe_explanations(explained[component]) or _find_possible_causes(verdicts, bad, component, spec)
    known = {c.id for component in roots for e in explained[component] for c in e.causes}
    for component in followers:
        # A mistake of a part shows in the whole. A mistake of the whole itself stays when the part is fixed.
        if any(c.id not in known for e in explained[component][:1] for c in e.causes):
            yield Finding("Fix too", component, inner=False)
            yield from describe_explanations(explained[component])
    if followers:
        yield Finding("These also fail, perhaps only because of it", ", ".join(followers), inner=False)
    if absent:
        yield Finding("Not implemented", ", ".join(absent), inner=False)
    if faults := [v for v in verdicts if v.is_fault]:
        text = f"{faults[0].message}. Not judged: {list_few(f'{v.check} ({v.dtype})' for v in faults)}"
        yield Finding("Fault in goldformer", text, inner=False)


def _find_possible_causes(
    verdicts: Sequence[Verdict], bad: Sequence[Verdict], component: str, spec: Spec
) -> Iterator[Finding]:
    """Yield possible causes of failures that no known mistake explains, or the place where values first go wrong."""
    # The message of a missing output is enough, and no known mistake leaves out an output.
    verdicts = [v for v in verdicts if v.reason != WITHHELD]
    bad = [v for v in bad if v.reason != WITHHELD]
    if not bad:
        return
    if differs := next((v for v in bad if v.reason == "property" and v.catches == (_DIFFERS,)), None):
        # A result that changes with each call matches no mistake, and any output may be the first wrong one. A call
        # that raised, or broke the contract, has no second result to compare.
        mistake = spec.mistakes[_DIFFERS]
        text = f"{_DIFFERS}, {mistake.title}: {differs.message}. {mistake.hint}"
        yield Finding(MISTAKE_FOUND, text, mistakes=(_DIFFERS,))
        return
    advice = dict.fromkeys(v.advice for v in bad if v.advice)
    if not advice and any(v.matches is not None and v.differences for v in bad):
        yield Finding(NOTHING_KNOWN, "No known mistake reproduces this output; " + _describe_first_wrong(bad))
        return
    # The message of an exception or a wrong shape is enough; only wrong values hint at mistakes.
    if any(v.reason in ("wrong-value", "not-finite", "property") for v in bad):
        for suspect in _select_likely(rank_suspects(verdicts, component, spec)):
            fits = f"It fits {suspect.explains} of {suspect.failing} failing checks."
            text = f"{suspect.mistake.id}, {suspect.mistake.title}. {fits} {suspect.mistake.hint}"
            yield Finding(POSSIBLE_CAUSES, text, mistakes=(suspect.mistake.id,))
    yield from (Finding("Convention", text) for text in advice)


def _select_explanations(verdicts: Sequence[Verdict], component: str, spec: Spec) -> list[Explanation]:
    """Return the explanations of at least half of the failing cases, best first."""
    return [e for e in rank_explanations(verdicts, component, spec) if 2 * e.equals >= e.case_count]


def describe_explanations(found: Sequence[Explanation], among: str = "failing", *, was: bool = False) -> list[Finding]:
    """Return the best explanation, and those that are as good.

    It is labelled as found if it reproduces every failing case that was compared, and as the closest one if not.
    `was` says that it explains an earlier result: there is nothing to fix.
    """
    findings: list[Finding] = []
    for place, e in enumerate(found[:_MOST_SUSPECTS]):
        if place and (e.equals, e.spared) != (found[0].equals, found[0].spared):
            break
        if place and e.is_other_option_of(found[0]):
            continue
        output = "the recorded output" if was else "your output"
        seen = f"It reproduces {output} in {e.equals} of {e.case_count} {among} cases ({describe_distance(e.ratio)})"
        seen += f", but not in {list_few(dict.fromkeys(e.refuting))}" if e.refuting else ""
        mistakes = tuple(c.id for c in e.causes if not c.option)
        head = "Or" if place else CLOSEST if not e.certain else MISTAKE_FOUND if mistakes else OPTION_FOUND
        parts = (f"{' and '.join(c.heading for c in e.causes)}.", f"{seen}.", "" if was else write_hint(e.causes))
        findings.append(Finding(head, " ".join(filter(None, parts)), mistakes=mistakes))
    return findings


def list_few(names: Iterable[str]) -> str:
    """List the first names, and count the others."""
    listed = list(names)
    more = len(listed) - _FEW
    return ", ".join(listed[:_FEW]) + (f" and {more} more" if more > 0 else "")


def _describe_first_wrong(bad: Sequence[Verdict]) -> str:
    """Name the output that is wrong first in the flow of data, in most failing cases."""
    first = Counter(v.differences[0].output for v in bad if v.differences)
    name, count = first.most_common(1)[0]
    return f"the first wrong output is {name} in {count} of {first.total()} failing cases"


def describe_distance(ratio: float) -> str:
    """Describe the distance between the actual result and its explanation."""
    return "within a thousandth of the tolerance" if ratio < 1e-3 else f"within {ratio:.2g} of the tolerance"


def _select_likely(found: Sequence[Suspect]) -> Sequence[Suspect]:
    """Return the best suspects, without those that account for less than half of the failing checks."""
    return [s for s in found[:_MOST_SUSPECTS] if 2 * s.explains >= s.failing]
