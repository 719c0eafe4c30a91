"""Remarks on a run, below its table: the diagnosis, precision, coverage, robustness, and what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from goldformer.adapters.process.patience import NOT_ASKED
from goldformer.conformance.diagnosis.causes import find_cause, write_declaration
from goldformer.conformance.diagnosis.declined import explain_declined
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.finding import FEW, OPTION_FOUND, Finding, list_few
from goldformer.conformance.diagnosis.findings import describe_faults, diagnose
from goldformer.conformance.diagnosis.precision import find_precision
from goldformer.conformance.diagnosis.raising import find_gpu_failures
from goldformer.conformance.diagnosis.sizes import SIZE_WORDS
from goldformer.conformance.judging.verdict import NOT_WRAPPED, PERMITTED, Agreement, Verdict, Wrapped
from goldformer.conformance.reports.counting import count_noun
from goldformer.conformance.reports.never_ran import NOTHING_MISSED, NeverRan
from goldformer.conformance.reports.results import NOT_IMPLEMENTED, PARTIAL, ComponentResult, Counts
from goldformer.spec import Spec

#: The labels of the lines below the diagnosis.
TOO_FEW: Final = "Partial"
FEW_CASES_APPLY: Final = "Few cases apply"
NEVER_RAN: Final = "Never ran"
JUDGED_UP_TO: Final = "Judged up to"
PERHAPS_NOT_SHOWN: Final = "Perhaps not shown"
ROBUSTNESS: Final = "Robustness"
MISSING: Final = "Not implemented"
#: The label of what a transformation such as torch.compile changes.
WRAPPED: Final = "Wrapped"

#: The label of how results in half types were rounded.
ROUNDING: Final = "Rounding"

#: The label of the settings over which results stay the same bit for bit.
BITS: Final = "Bit for bit"

#: The label of what a NaN in padding does.
HIDDEN_NAN: Final = "Hidden NaN"

#: The labels that are no diagnosis of a failure.
NOTES: Final = frozenset({
    BITS, HIDDEN_NAN, ROUNDING, TOO_FEW, FEW_CASES_APPLY, NEVER_RAN, JUDGED_UP_TO, PERHAPS_NOT_SHOWN, ROBUSTNESS,
    MISSING,
})  # fmt: skip

#: The number of places that are named which no golden case ran.
_MOST_LINES: Final = 6
#: The number of components whose sizes are named.
_MOST_SIZES: Final = 2
#: The number of reasons that are given for what cannot be wrapped, or was not run.
_MOST_REASONS: Final = 3


def make_remarks(
    run: DiagnosedRun,
    by_component: Mapping[str, ComponentResult],
    spec: Spec,
    conventions: Mapping[str, str] = MappingProxyType({}),
    never_ran: NeverRan = NOTHING_MISSED,
    *,
    whole: bool = False,
    more: str = "-v",
) -> list[Finding]:
    """Return the remarks on a run; `whole` names all that perhaps did not show or is missing.

    `conventions` are those that the adapter declares, `more` is what shows the reader of the remarks the whole ones.
    """
    verdicts, results = run.verdicts, [*by_component.values()]
    parts: tuple[Iterable[Finding], ...] = (
        _compare_wrapped(verdicts, whole=whole, more=more),
        (finding for finding in diagnose(run, spec) if finding.label != MISSING),
        _describe_refusals(verdicts, spec),
        _list_not_run(verdicts, whole=whole, more=more),
        _describe_bits(verdicts) if whole or any(v.reason == "bitwise" for v in verdicts) else (),
        _describe_hidden_nan(verdicts, whole=whole, more=more),
        find_precision(verdicts, spec),
        _describe_half_types(verdicts),
        find_gpu_failures(verdicts, spec),
        _explain_coverage(verdicts, results, conventions, spec),
        _describe_never_ran(never_ran, whole=whole, more=more),
        _list_sizes(results, whole=whole, more=more),
        _list_unseen(results, whole=whole, more=more),
        _describe_robustness(verdicts, whole=whole, more=more),
        # Of all components, one's own code has a few.
        _list_missing(results) if whole or len(results) < len(spec.contracts) else (),
    )
    found: list[Finding] = []
    for part in parts:
        with run.keep_verdicts():
            found.extend(part)
    return [*found, *describe_faults(run)]


def _describe_refusals(verdicts: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield the options that permit all calls of a component which raise, if the others are right."""
    wrong = {v.component for v in verdicts if v.bad}
    permitted = [v for v in verdicts if v.message.startswith(PERMITTED) and v.component not in wrong]
    found = Counter((v.component, ": ".join(v.message.removeprefix(PERMITTED).split(": ")[:2])) for v in permitted)
    for (component, option), count in found.items():
        cause = find_cause(option, spec)
        what = f"only {count_noun(count, 'call')} of {component} that it permits to refuse raise, and are not judged"
        yield Finding(OPTION_FOUND, f"{cause.title}: {what}. To say so, {write_declaration([cause])}", inner=False)


def _describe_half_types(verdicts: Sequence[Verdict]) -> Iterator[Finding]:
    """Yield how right results in half types were rounded, and what does not show in them."""
    checked = {v.dtype for v in verdicts if v.is_judged}
    for dtype in dict.fromkeys(v.dtype for v in verdicts if v.rounded_once is not None):
        once = [v.rounded_once for v in verdicts if v.dtype == dtype and v.rounded_once is not None]
        visible = sorted(v.visible for v in verdicts if v.dtype == dtype and v.visible is not None)
        text = f"{sum(once)} of {count_noun(len(once), 'right result')} in {dtype} are those of float32, rounded once"
        if visible:
            least = f"{100 * visible[len(visible) // 2]:.1g} %"
            text += f"; in half of the cases, changes of less than {least} of a result do not show"
        yield Finding(ROUNDING, f"{text}: check float32 too" if "float32" not in checked else text, inner=False)


def _compare_wrapped(verdicts: Sequence[Verdict], *, whole: bool, more: str) -> Iterator[Finding]:
    """Yield what a transformation such as torch.compile changes, and what it cannot take."""
    compared = [v for v in verdicts if v.wrapped]
    if compared:
        yield Finding(WRAPPED, _count_agreements([v.wrapped for v in compared if v.wrapped]), inner=False)
    wrong = [f"{v.check} ({v.dtype})" for v in compared if v.reason == "wrapper"]
    if wrong:
        label = f"{next(v.wrapped.wrapper for v in compared if v.wrapped)} is wrong"
        yield Finding(label, f"{_list_names(wrong, whole=whole)}: the function itself is right", inner=False)
    left_out = [v for v in verdicts if v.reason == "not-wrapped"]
    if left_out:
        yield Finding(
            "Not wrapped",
            f"{count_noun(len(left_out), 'case')}, which are not judged. "
            f"{_count_messages(left_out, NOT_WRAPPED, whole=whole, more=more)}",
            inner=False,
        )


def _count_messages(verdicts: Iterable[Verdict], head: str, *, whole: bool, more: str) -> str:
    """Return the messages of verdicts without their `head`, each with the components that it is about.

    `more` names all of them.
    """
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        reasons[verdict.message.removeprefix(head)][verdict.component] += 1
    listed = [
        f"{sum(counts.values())} of {list_few(counts)}: {message}"
        for message, counts in sorted(reasons.items(), key=lambda item: -item[1].total())
    ]
    shown = listed if whole else listed[:_MOST_REASONS]
    rest = f"; {len(listed) - len(shown)} more reasons ({more} names all)" if len(shown) < len(listed) else ""
    return f"{'; '.join(shown)}{rest}"


def _list_not_run(verdicts: Sequence[Verdict], *, whole: bool, more: str) -> Iterator[Finding]:
    """Yield which checks were not run, because the calls before them got no answer."""
    if left_out := [v for v in verdicts if not v.was_asked]:
        were = f"{count_noun(len(left_out), 'check')} {'was' if len(left_out) == 1 else 'were'} not run"
        text = f"{were}: {_count_messages(left_out, NOT_ASKED, whole=whole, more=more)}"
        yield Finding("No answer", text, inner=False)


def _count_agreements(compared: Sequence[Wrapped]) -> str:
    """Return how many cases are equal with and without a transformation, right both times, or wrong."""
    counts = Counter(w.agreement for w in compared)
    distance = max((w.distance for w in compared if w.distance is not None), default=0.0)
    words: Mapping[Agreement, str] = {
        "equal": "equal bit for bit",
        "both right": f"both within tolerance (at most {distance:.2g} of it apart)",
        "wrapped is wrong": f"right only without {compared[0].wrapper}",
        "both wrong": "wrong with and without it",
        "only wrapped is right": "wrong only without it",
    }
    parts = [f"{counts[agreement]} {text}" for agreement, text in words.items() if counts[agreement]]
    return f"by {compared[0].wrapper}, {count_noun(len(compared), 'case')}: {', '.join(parts)}"


def _describe_bits(verdicts: Sequence[Verdict]) -> Iterator[Finding]:
    """Yield over which settings results stay bit for bit."""
    found = [(v.component, invariance) for v in verdicts for invariance in v.invariances]
    if not found:
        return
    parts = []
    for setting in dict.fromkeys(invariance.setting for _, invariance in found):
        mine = [(component, i) for component, i in found if i.setting == setting]
        components = dict.fromkeys(component for component, _ in mine)
        rounded = dict.fromkeys(component for component, i in mine if not i.bitwise)
        parts.append(f"{setting}: {len(components) - len(rounded)} of {len(components)} components")
        if rounded:
            names = ", ".join(rounded)
            distance = max(i.distance for _, i in mine)
            parts[-1] += f" (within tolerance, at most {distance:.2g} of it apart: {names})"
    yield Finding(BITS, f"over {'; '.join(parts)}", inner=False)


def _describe_hidden_nan(verdicts: Sequence[Verdict], *, whole: bool, more: str) -> Iterator[Finding]:
    """Yield in which inputs a NaN that the mask hides reaches the output, and of which components."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for verdict in verdicts:
        for name in verdict.hidden_nan:
            found[name][verdict.component] = None
    if not found:
        return
    # A masked score may be replaced, which removes a NaN; a weight of 0 is still multiplied by the value.
    why = {"value": " (0 · NaN)", "key": " (its scores stay NaN)"}
    parts = [f"in {name} of {', '.join(mine)}{why.get(name, '')}" for name, mine in found.items()]
    components = {component for mine in found.values() for component in mine}
    if not whole and len(components) > 1:
        parts = [f"in {len(components)} components ({more} names them)"]
    text = f"a NaN in padding reaches the output although the mask hides it, {'; '.join(parts)}"
    text += ": fill padding with finite numbers"
    yield Finding(HIDDEN_NAN, text, inner=False)


def _explain_coverage(
    verdicts: Sequence[Verdict], results: Sequence[ComponentResult], conventions: Mapping[str, str], spec: Spec
) -> Iterator[Finding]:
    """Yield for each component with few judged cases why: how many it needs, and what would admit the others."""
    for result in results:
        if result.state != PARTIAL:
            if result.conforms and result.coverage.lost:
                text = f"{result.component}, {result.coverage}. Skipped: {'; '.join(result.coverage.lost)}"
                yield Finding(FEW_CASES_APPLY, text, inner=False)
            continue
        if result.unused_cache:
            text = f"{result.component}: no golden case used its cache ({result.unused_cache}). "
            text += "What it returns for later calls is not judged: let an adapter call it as cached_model"
            yield Finding(TOO_FEW, text, inner=False)
        if result.coverage.is_enough:
            continue
        coverage, mine = result.coverage, [v for v in verdicts if v.component == result.component]
        text = f"{result.component}, {coverage.judged} of {count_noun(coverage.admitted, 'case')} that the declared "
        text += f"options admit were judged, and at least {coverage.needed} must be"
        text += f". Not judged: {'; '.join(coverage.lost)}" if coverage.lost else ""
        if cause := explain_declined(mine, conventions, spec):
            text += f". All calls that it declines have what {cause.id} leaves out: {write_declaration([cause])}"
        yield Finding(TOO_FEW, text, inner=False)


def _describe_never_ran(never_ran: NeverRan, *, whole: bool, more: str) -> Iterator[Finding]:
    """Yield what no golden case ran of the code."""
    if text := never_ran.describe(None if whole else _MOST_LINES):
        rest = "" if whole or len(never_ran.places) <= _MOST_LINES else f" ({more} lists all)"
        yield Finding(NEVER_RAN, f"{text}{rest}", inner=False)


def _list_sizes(results: Sequence[ComponentResult], *, whole: bool, more: str) -> Iterator[Finding]:
    """Yield up to which sizes the components were judged."""
    # Those with keys come first: most code that works in blocks is attention.
    found = [result for result in results if not SIZE_WORDS.keys().isdisjoint(result.judged_up_to)]
    found.sort(key=lambda result: "kv_seq" not in result.judged_up_to)
    described = [f"{_describe_sizes(result.judged_up_to)} ({result.component})" for result in found]
    if described:
        shown = described if whole else described[:_MOST_SIZES]
        rest = f"; {more} names {len(described) - len(shown)} more" if len(shown) < len(described) else ""
        yield Finding(JUDGED_UP_TO, f"{'; '.join(shown)}{rest}", inner=False)


def _describe_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(words.format(sizes[name]) for name, words in SIZE_WORDS.items() if name in sizes)


def _list_unseen(results: Sequence[ComponentResult], *, whole: bool, more: str) -> Iterator[Finding]:
    """Yield the known mistakes that no check which ran is known to show."""
    unseen = {r.component: r.coverage.unseen for r in results if r.counts.number_judged and r.coverage.unseen}
    if not unseen:
        return
    if whole or len(unseen) == 1:
        known = ((f"{count_noun(len(ids), 'known mistake')} of {name}", ids) for name, ids in unseen.items())
        text = ", ".join(f"{what} ({_list_names(ids, whole=whole)})" for what, ids in known)
        text += ": every check that is known to show them was skipped, others may"
        text += "" if whole else f"; {more} names them all"
    else:
        count = sum(map(len, unseen.values()))
        text = f"{count} known mistakes of {len(unseen)} components, whose checks were skipped ({more} names them)"
    yield Finding(PERHAPS_NOT_SHOWN, text, inner=False)


def _describe_robustness(verdicts: Sequence[Verdict], *, whole: bool, more: str) -> Iterator[Finding]:
    """Yield how many bad inputs were refused, and which were not."""
    counts = Counts.of(verdicts)
    if not counts.refusals:
        return
    accepted = dict.fromkeys(v.check for v in verdicts if v.asks == "refusal" and v.is_tolerated)
    text = f"refuses {counts.refused} of {counts.refusals} bad inputs"
    named = f"accepts {', '.join(accepted)}" if whole or len(accepted) <= FEW else f"accepts {len(accepted)} others"
    shows = "" if whole else f"{more} shows each; "
    text += f"; {named} ({shows}only --strict, or strict=True in Python, fails them)" if accepted else ""
    yield Finding(ROBUSTNESS, text, inner=False)


def _list_missing(results: Sequence[ComponentResult]) -> Iterator[Finding]:
    """Yield the components that the adapter does not have."""
    if missing := [result.component for result in results if result.state == NOT_IMPLEMENTED]:
        yield Finding(MISSING, ", ".join(missing), inner=False)


def _list_names(names: Iterable[str], *, whole: bool) -> str:
    """Return all names, or the first ones and the number of the others."""
    return ", ".join(names) if whole else list_few(names)
