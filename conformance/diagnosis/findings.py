"""The findings of a whole run: the component to fix first, the known mistake that explains it, and the unknown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from goldformer.conformance.diagnosis.causes import (
    SHOWN_BY_PROPERTY,
    Cause,
    write_declaration,
    write_hint,
)
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun, Place
from goldformer.conformance.diagnosis.finding import (
    AGAIN,
    AS_PRINTED,
    BECAUSE,
    CLOSEST,
    CLOSEST_OPTION,
    DECLARE_ALL,
    FIRST_SEEN,
    FIX_FIRST,
    FIX_TOO,
    HOLDS,
    INSTEAD_OF,
    MISTAKE_FOUND,
    NO_EFFECT,
    NOTHING_KNOWN,
    OPTION_FOUND,
    PLACE,
    POSSIBLE_CAUSES,
    REPEAT,
    SMALLEST,
    WRITE,
    Finding,
    list_few,
    quote_check,
)
from goldformer.conformance.diagnosis.printed import find_printed, write_printed
from goldformer.conformance.diagnosis.raising import (
    describe_errors,
    describe_limits,
    describe_mixed_devices,
    find_place,
)
from goldformer.conformance.diagnosis.sizes import describe_size
from goldformer.conformance.diagnosis.suspects import (
    ACCEPTED,
    Explanation,
    Suspect,
    find_failing_roots,
    is_as_good,
    rank_explanations,
    rank_suspects,
)
from goldformer.conformance.judging.invoke import NOT_RUN
from goldformer.conformance.judging.measure import GRADIENT_OF
from goldformer.conformance.judging.verdict import (
    ERRORS,
    NO_MISTAKE,
    NONDETERMINISM,
    WITHHELD,
    Status,
    Verdict,
)
from goldformer.conformance.properties.relations import join_names
from goldformer.spec import Spec
from goldformer.spec.ways import WAYS

_MOST_SUSPECTS: Final = 3
_KEEP_NOTHING: Final = (
    "Keep nothing from one call to the next that depends on more than sizes: no such cache, buffer or counter."
)
#: The mistake that every call shows by itself.
_IN_PLACE: Final = "input-mutated"
#: The mistake that gives a result a finer dtype than that of its inputs.
_PROMOTION: Final = "dtype-promote"
_WITHOUT: Final = "Plug in a part without it, or switch it off"
#: Two parts that are wrong by themselves have in common what comes before them and after them.
_ALL_OF_THEM: Final = ", each by itself, or a normalisation or residual that all of them pass"


def diagnose(run: DiagnosedRun, spec: Spec) -> list[Finding]:
    """Return what to fix first, which known mistakes explain it, and what is not implemented."""
    found: list[Finding] = []
    with run.keep_verdicts():
        found.extend(_diagnose(run, spec))
    return found


def describe_faults(run: DiagnosedRun) -> Iterator[Finding]:
    """Yield where goldformer itself broke: in checks, which are not judged, and in the search for causes."""
    if faults := [v for v in run if v.is_fault]:
        text = f"{faults[0].message}. Not judged: {list_few(f'{v.check} ({v.dtype})' for v in faults)}"
        yield Finding("Fault in goldformer", text, inner=False)
    broken = {f"{v.check} ({v.dtype})": fault for v in run if (fault := run.get_note(v).fault)}
    if broken:
        what = next(iter(broken.values())).partition("\n")[0]
        text = f"a fault in goldformer ended the search for the cause of {list_few(broken)}: {what}. The verdicts "
        text += "stand, but a cause may be missing. Please report it with the traceback, which `check -v` prints"
        yield Finding("Diagnosis failed", text, inner=False)


def _diagnose(run: DiagnosedRun, spec: Spec) -> Iterator[Finding]:
    run = run.select(lambda v: v.reason not in NO_MISTAKE and v.was_asked)
    judged = {c: [v for v in run if v.component == c and v.is_judged] for c in spec.components}
    absent = [c for c, mine in judged.items() if mine and all(v.reason == "not-implemented" for v in mine)]
    roots, followers = find_failing_roots((v for v in run if v.component not in absent), spec)
    explained = {component: _select_explanations(run, component, spec) for component in (*roots, *followers)}
    groups: dict[str, list[str]] = {BECAUSE: [], AGAIN: []}
    for component in (*roots, *followers):
        label = FIX_FIRST if component in roots else _classify_follower(component, run, judged, explained, spec)
        if label in groups:
            groups[label].append(component)
            continue
        yield Finding(label, component, inner=False)
        bad = [v for v in judged[component] if v.bad]
        found = list(_describe_state(bad, run, spec)) or describe_explanations(explained[component])
        found = _put_zeros_first(judged[component], explained[component], found)
        if label == FIX_FIRST or not found:
            yield from _describe_first_seen(judged[component], spec)
        yield from _describe_idle(bad, run)
        uncertain = bool(found) and found[0].label == CLOSEST
        found = found or list(_find_possible_causes(run, bad, component, spec))
        yield from found
        if uncertain:
            yield from _describe_place(_get_place(bad, run))
        yield from _describe_printed(found, bad, component, spec)
    yield from _declare_together(explained)
    yield from (Finding(label, ", ".join(names), inner=False) for label, names in groups.items() if names)
    if absent:
        yield Finding("Not implemented", ", ".join(absent), inner=False)
    yield from _describe_not_run(run)


def _describe_printed(
    found: Sequence[Finding], bad: Sequence[Verdict], component: str, spec: Spec
) -> Iterator[Finding]:
    """Yield the documents that print what was found: mistakes, or code that raises a dtype or just this error."""
    mistakes = {id_ for finding in found for id_ in finding.mistakes}
    if bad and all(v.reason == "wrong-dtype" for v in bad if v.kind == "case"):
        mistakes.add(_PROMOTION)
    errata = find_printed(mistakes, component, {v.check for v in bad}, spec) if mistakes else []
    errata += spec.errata_quoted_in("\n".join(v.message for v in bad if v.reason == "raised"))
    if errata:
        text = f"{write_printed(errata)}; goldformer explain {errata[0].id} says what is right"
        yield Finding(AS_PRINTED, text)


def _describe_first_seen(judged: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield the first failing check, with values if any are wrong, and how to decline what is not supported."""
    bad = [v for v in judged if v.bad]
    first = next((v for v in bad if v.reason != ACCEPTED), bad[0])
    # A call that raises may be of a kind that the code does not have; a number that is wrong is wrong.
    shown = next((v for v in bad if v.differences), first)
    yield Finding(FIRST_SEEN, f"{shown.check}: {quote_check(shown.message)}")
    yield from describe_size(judged, spec)
    yield from describe_limits(first, judged, spec)


def _describe_idle(bad: Sequence[Verdict], run: DiagnosedRun) -> Iterator[Finding]:
    """Yield the parameters that change no output of a failing case."""
    for verdict, idle in ((v, run.get_note(v).idle) for v in bad):
        if not idle:
            continue
        change = "change" if len(idle) > 1 or idle[0].endswith("*") else "changes"
        advice = "Check that the adapter passes them on and the code reads them"
        yield Finding(NO_EFFECT, f"{list_few(idle)} {change} no output of {verdict.check}. {advice}")


def _classify_follower(
    component: str,
    run: DiagnosedRun,
    judged: Mapping[str, Sequence[Verdict]],
    explained: Mapping[str, Sequence[Explanation]],
    spec: Spec,
) -> str:
    """Return FIX_TOO, BECAUSE or AGAIN for a component that fails and has a failing part.

    It fails because of its parts if what explains them explains all of its failing cases too. If something else
    explains it, or nothing does, it is to be fixed too. If nobody can tell, it is to be checked again: what explains
    its parts explains some of its failing cases, or a part cannot be imitated.
    """
    parts = [part for part in spec.list_dependencies(component) if part in explained]
    known = [(part, c) for part in parts for e in explained[part] for c in e.causes]
    bad = [v for v in judged[component] if v.bad and v.reason != ACCEPTED]
    if not bad or any(run.get_note(v).state is not None for v in bad):
        return FIX_TOO
    if best := next(iter(explained[component]), None):
        # What two parts do, one cause of the whole may do as well.
        equals = [e for e in explained[component] if e.certain and e.equals == best.equals] if best.certain else []
        return BECAUSE if any(all(_is_inherited(c, known) for c in e.causes) for e in equals) else FIX_TOO
    ranked = [e for e in rank_explanations(run, component, spec) if not e.fits_by_chance]
    if any(e.equals and all(_is_inherited(c, known) and not _is_deliberate(c) for c in e.causes) for e in ranked):
        return AGAIN
    if any(run.evidence.is_searched(v.key) and v.differences for v in bad):
        # A part that nothing known explains cannot be imitated in the whole, nor can a cache that reads word by word
        # what is wrong in a model. What is wrong in the loop itself is said at once.
        place = _get_place(bad, run)
        in_model = place is not None and not place.is_loop
        decodes = "bos_id" in spec.contracts[component].attributes
        return AGAIN if (decodes and in_model) or not all(explained[part] for part in parts) else FIX_TOO
    places = {find_place(v) for part in parts for v in judged[part] if v.reason == "raised"}
    raised = [v for v in bad if v.reason == "raised"]
    if raised and len(raised) == len(bad):
        return BECAUSE if all(find_place(v) in places for v in raised) else FIX_TOO
    return AGAIN


def _is_inherited(cause: Cause, known: Iterable[tuple[str, Cause]]) -> bool:
    """Return True if a cause is one of a part's: the same, or made only in the half to which the part belongs.

    `known` are parts with their causes. A part has no halves, so that its cause names none.
    """
    return any(
        cause.id == other.id
        and (cause.heading == other.heading or f", only in the {part.partition('_')[0]}" in cause.heading)
        for part, other in known
    )


def _is_deliberate(cause: Cause) -> bool:
    """Return True for what may be deliberate: it is not fixed, so that nothing is checked again after it."""
    from goldformer.conformance.diagnosis.mistakes import ON_PURPOSE  # a run that passes needs no catalogue

    return cause.id in ON_PURPOSE


def _declare_together(explained: Mapping[str, Sequence[Explanation]]) -> Iterator[Finding]:
    """Yield one declaration of the options that explain several components, if they name more than any one does."""
    options: dict[str, Cause] = {}
    largest = 0
    for found in explained.values():
        named = [c for e in found[:1] for c in e.causes if c.option]
        largest = max(largest, len(named))
        for cause in named:
            options.setdefault(cause.convention, cause)
    if len(options) > largest:
        yield Finding(DECLARE_ALL, f"{write_declaration(options.values())}, or fix it", inner=False)


def _describe_not_run(run: DiagnosedRun) -> Iterator[Finding]:
    """Yield the properties that the implementation kept from running, although nothing is wrong with it."""
    stopped = [v for v in run if v.kind == "property" and v.message.startswith(NOT_RUN)]
    for check in dict.fromkeys(v.check for v in stopped):
        mine = [v for v in stopped if v.check == check]
        names = list_few(dict.fromkeys(v.component for v in mine))
        yield Finding("Could not be checked", f"{check} of {names}: {mine[0].message}", inner=False)


def _find_possible_causes(run: DiagnosedRun, bad: Sequence[Verdict], component: str, spec: Spec) -> Iterator[Finding]:
    """Yield possible causes of failures that no known mistake explains, or the place where values first go wrong."""
    yield from _describe_ways([v for v in bad if v.reason == "way"])
    # The message of a missing output is enough, and so is that of a bad call that is accepted.
    run = run.select(lambda v: v.reason not in (WITHHELD, ACCEPTED, "way"))
    bad = [v for v in bad if v.reason not in (WITHHELD, ACCEPTED, "way")]
    if not bad:
        return
    shown = [v for v in bad if v.reason == "property" and v.catches in SHOWN_BY_PROPERTY]
    if shown:
        # A result that changes with each call matches no mistake, and any output may be the first wrong one. A call
        # that raised, or broke the contract, has no second result to compare.
        first = min(shown, key=lambda v: SHOWN_BY_PROPERTY.index(v.catches))
        mistake = spec.mistakes[first.catches[0]]
        text = f"{mistake.id}, {mistake.title}: {first.message}. {mistake.hint}"
        yield Finding(MISTAKE_FOUND, text, mistakes=(mistake.id,))
        return
    if found := _suspect_state(bad, run, spec) or _describe_changed_inputs(bad, spec):
        yield found
        return
    mixed = describe_mixed_devices(bad, component, spec) + describe_errors(bad, spec)
    yield from mixed
    advice = _select_advice(bad, run)
    yield from (Finding("Convention", text) for text in advice)
    wrong = [v for v in bad if v.differences and run.get_note(v).advice not in advice]
    if any(run.evidence.is_searched(v.key) for v in wrong):
        yield from _describe_unknown(bad, wrong, run)
        return
    # The message of an exception or a wrong shape is enough; only wrong values hint at mistakes.
    if mixed or advice or not any(v.reason in ("wrong-value", "not-finite", "property") for v in bad):
        return
    if any(v.reason in ERRORS for v in bad):
        return
    for suspect in _select_likely(rank_suspects(run, component, spec)):
        fits = f"It fits {suspect.explains} of {suspect.failing} failing checks."
        text = f"{suspect.mistake.id}, {suspect.mistake.title}. {fits} {suspect.mistake.hint}"
        yield Finding(POSSIBLE_CAUSES, text, mistakes=(suspect.mistake.id,))


def _describe_ways(wrong: Sequence[Verdict]) -> Iterator[Finding]:
    """Yield the ways of being called in which right code is wrong."""
    for way in WAYS.values():
        checks = [v.check for v in wrong if v.message.startswith(way.describe(""))]
        if checks:
            yield Finding(MISTAKE_FOUND, f"{way.describe('')}{list_few(checks)}. {way.hint}")


def _describe_unknown(bad: Sequence[Verdict], wrong: Sequence[Verdict], run: DiagnosedRun) -> Iterator[Finding]:
    """Yield the place of what no known mistake reproduces, or what goldformer does not judge of the code."""
    if beyond := next(filter(None, (run.get_note(v).beyond for v in bad)), ""):
        # The place would be that of right code too.
        yield Finding(NOTHING_KNOWN, f"{beyond}. {_WITHOUT}")
        return
    yield Finding(NOTHING_KNOWN, "No known mistake reproduces this output; " + _describe_first_wrong(wrong))
    yield from _describe_place(_get_place(bad, run))


def _put_zeros_first(
    judged: Sequence[Verdict], explained: Sequence[Explanation], found: list[Finding]
) -> list[Finding]:
    """Return the findings after the one that an output is 0 in every failing case, if that says more than they do.

    One result of zeros is near to what many mistakes give: only what explains several cases is found. A known cause
    that gives exactly zeros, as an overflow or an option for rows without keys does, says why, and zeros do not.
    """
    cases = [v for v in judged if v.bad and v.kind == "case" and v.differences and not _is_of_gradients(v)]
    zeros = [{d.output: None for d in v.differences if d.is_zero} for v in cases]
    name = next((name for name in zeros[0] if all(name in other for other in zeros)), None) if zeros else None
    known = any(f.label in (MISTAKE_FOUND, OPTION_FOUND) for f in found)
    is_exact = bool(explained) and not explained[0].generated and explained[0].ratio == 0
    if name is None or (known and (len(cases) > 1 or is_exact)):
        return found
    text = f"Every number of {name} is 0 in {len(cases)} of {len(cases)} failing cases"
    # The result of a case that passes with a rounding error is not 0 everywhere.
    if passing := [v for v in judged if v.kind == "case" and v.status is Status.PASSED and v.ratio]:
        text += f", and {len(passing)} others pass. Look for what makes all of it 0 there, such as a test for NaN"
        return [Finding(POSSIBLE_CAUSES, f"{text} or infinity, or an early return."), *found]
    text += ". Look for where it is filled, and return what is computed."
    others = [replace(f, label=POSSIBLE_CAUSES) if f.label == MISTAKE_FOUND else f for f in found]
    return [Finding(MISTAKE_FOUND, text), *others]


def _describe_state(bad: Sequence[Verdict], run: DiagnosedRun, spec: Spec) -> Iterator[Finding]:
    """Yield the finding that failures depend on earlier calls, and the command that shows it."""
    states = ((v, run.get_note(v).state) for v in bad)
    kept = [(v, state) for v, state in states if state is not None and state.is_proven]
    if not kept:
        return
    # The fewest calls show it best.
    shown, state = min(kept, key=lambda one: len(one[1].after) or math.inf)
    after = join_names(state.after) if state.after else "the cases before it"
    text = (
        f"{shown.check} is right when it is called first, and wrong after {after}. "
        f"It is so in {len(kept)} of {_count_cases(bad)} failing cases"
    )
    yield _name_state(MISTAKE_FOUND, text, spec)
    yield Finding(REPEAT, run.explain(shown).reproduce)


def _suspect_state(bad: Sequence[Verdict], run: DiagnosedRun, spec: Spec) -> Finding | None:
    """Return what the sizes of calls hint at where the implementation is an object in memory; None if at nothing."""
    if not any(run.get_note(v).state is not None for v in bad):
        return None
    text = (
        f"All {_count_cases(bad)} failing cases have the sizes of an earlier call, and no call of new sizes fails. In "
        "a new session such a case is then right if it is called first; goldformer check FILE tries that by itself"
    )
    return _name_state(POSSIBLE_CAUSES, text, spec)


def _name_state(label: str, text: str, spec: Spec) -> Finding:
    what = f"{NONDETERMINISM}, {spec.mistakes[NONDETERMINISM].title}: state between calls"
    return Finding(label, f"{what}. {text}. {_KEEP_NOTHING}", mistakes=(NONDETERMINISM,))


def _count_cases(bad: Sequence[Verdict]) -> int:
    return sum(v.kind == "case" for v in bad)


def _describe_changed_inputs(bad: Sequence[Verdict], spec: Spec) -> Finding | None:
    """Return the finding that a call changes the caller's arrays, if nothing else is wrong; None if something is.

    Gradients are wrong because of it: a backward pass reads what was changed.
    """
    changes = [v for v in bad if v.reason == "mutated-input"]
    others = [v for v in bad if v.kind == "case" and v.differences and not _is_of_gradients(v)]
    if not changes or others:
        return None
    mistake = spec.mistakes[_IN_PLACE]
    text = f"{_IN_PLACE}, {mistake.title}. It {changes[0].message}."
    return Finding(MISTAKE_FOUND, text, mistakes=(_IN_PLACE,))


def _is_of_gradients(verdict: Verdict) -> bool:
    return all(difference.output.startswith(GRADIENT_OF) for difference in verdict.differences)


def _get_place(bad: Iterable[Verdict], run: DiagnosedRun) -> Place | None:
    """Return the place of a mistake that failing cases show; None if none does."""
    return next(filter(None, (run.get_note(v).place for v in bad)), None)


def _describe_place(place: Place | None) -> Iterator[Finding]:
    """Yield the place of a mistake that nothing explains, what is right, and a call that shows it."""
    if place is None:
        return
    yield Finding(PLACE, " and ".join(place.names) + (_ALL_OF_THEM if len(place.names) > 1 else ""))
    if place.holds:
        yield Finding(HOLDS, join_names(place.holds))
    if place.wrong_call:
        yield Finding(SMALLEST, place.wrong_call)


def list_unexplained(run: DiagnosedRun, spec: Spec) -> list[str]:
    """Return the components that are to be fixed and that no known mistake or option reproduces."""
    labels: dict[str, list[str]] = {}
    for component, label in _list_labels(run, spec):
        labels.setdefault(component, []).append(label)
    found = {MISTAKE_FOUND, OPTION_FOUND, POSSIBLE_CAUSES}
    return [
        component
        for component, mine in labels.items()
        if mine[0] in (FIX_FIRST, FIX_TOO)
        if found.isdisjoint(mine) or not {NOTHING_KNOWN, CLOSEST}.isdisjoint(mine)
    ]


def list_unknown(run: DiagnosedRun, spec: Spec) -> list[str]:
    """Return the components whose failures nothing known explains."""
    return [component for component, label in _list_labels(run, spec) if label == NOTHING_KNOWN]


def list_unsettled(run: DiagnosedRun, spec: Spec) -> list[str]:
    """Return the components that nothing known explains, or not for certain, under the options that they declare."""

    def is_as_declared(component: str) -> bool:
        return not any(c.option for c in _select_explanations(run, component, spec)[0].causes)

    labels = dict.fromkeys(_list_labels(run, spec))
    return [c for c, label in labels if label == NOTHING_KNOWN or (label == CLOSEST and is_as_declared(c))]


def _list_labels(run: DiagnosedRun, spec: Spec) -> Iterator[tuple[str, str]]:
    component = ""
    for finding in diagnose(run, spec) if any(v.bad for v in run) else ():
        component = component if finding.inner else finding.text
        yield component, finding.label


def _select_advice(bad: Sequence[Verdict], run: DiagnosedRun) -> list[str]:
    """Return the advice that fits at least half of the failing cases with wrong values, and of those that raise."""
    kept: list[str] = []
    for raised in (False, True):
        mine = [v for v in bad if v.kind == "case" and (v.reason in ERRORS) is raised]
        counted = Counter(filter(None, (run.get_note(v).advice for v in mine)))
        kept += [text for text, count in counted.most_common(1) if 2 * count >= len(mine)]
    return kept


def _select_explanations(run: DiagnosedRun, component: str, spec: Spec) -> list[Explanation]:
    """Return the explanations of at least half of the failing cases, best first.

    Two mistakes together must explain nine in ten, and all with an edit: of so many pairs some fit by chance. With a
    number that was solved for much can be fitted: it must explain all of several cases, or a new call.
    """

    def fits(e: Explanation) -> bool:
        if any(c.solved for c in e.causes):
            return e.certain and (e.equals > 1 or e.confirmed)
        several = sum(not c.option for c in e.causes) > 1
        if several and e.generated and not e.certain:
            return False
        if several:
            return 10 * e.equals >= 9 * e.case_count
        # What would fail a passing case as well must explain more than half.
        return 2 * e.equals >= e.case_count + bool(e.passing)

    return [e for e in rank_explanations(run, component, spec) if fits(e) and not e.fits_by_chance]


def describe_explanations(found: Sequence[Explanation], among: str = "failing", *, was: bool = False) -> list[Finding]:
    """Return the best explanation, and those that are as good.

    It is labelled as found if it reproduces every failing case that was compared, no passing case refutes it, and no
    other mistake explains as much, unless that gives the same in every case; as the closest one if a case refutes it.
    `was` says that it explains an earlier result: there is nothing to fix.
    """
    if not found:
        return []
    best = [e for e in found if is_as_good(e, found[0])]
    # The first one is contradicted only if all are.
    best = [e for e in best if e.contradicted is best[0].contradicted]
    distinct = [e for place, e in enumerate(best) if not any(e.adds_nothing_to(better) for better in best[:place])]
    # Two edits that no case tells apart are two descriptions of one thing, and so is one mistake in two places.
    first, others = distinct[0], [e for e in distinct[1:] if not (e.generated or _is_elsewhere(e, distinct[0]))]
    findings = [_describe_explanation(e, among, was=was) for e in (first, *others[: _MOST_SUSPECTS - 1])]
    # Another mistake explains as much: the first one is no more than possible.
    has_rival = any(len(e.causes) == len(first.causes) and e.ids not in first.twins for e in others)
    if findings[0].mistakes and has_rival:
        findings[0] = replace(findings[0], label=POSSIBLE_CAUSES)
    for place, (other, finding) in enumerate(zip(others, findings[1:], strict=False), 1):
        same = " No case tells the two apart." if other.ids in first.twins else ""
        findings[place] = replace(finding, label="Or", text=f"{finding.text}{same}")
    return [findings[0], *([] if was else _show_code(findings[0], first)), *findings[1:]]


def _show_code(finding: Finding, e: Explanation) -> list[Finding]:
    """Return the code of the mistake that a finding is certain of, and the code that is right."""
    code = e.causes[0].code if len(e.causes) == 1 and finding.label == MISTAKE_FOUND else None
    return [Finding(INSTEAD_OF, code[0]), Finding(WRITE, code[1])] if code else []


def _is_elsewhere(e: Explanation, best: Explanation) -> bool:
    """Return True if an explanation is the best one in another place, and no case tells the two apart."""
    return e.ids in best.twins and {c.id for c in e.causes} == {c.id for c in best.causes}


def _describe_explanation(e: Explanation, among: str, *, was: bool) -> Finding:
    output = "the recorded output" if was else "your output"
    seen = f"It reproduces {output} in {e.equals} of {e.failing_count} {among} cases ({describe_distance(e.ratio)})"
    for which, checks in (("", e.refuting), (" of a backward pass by hand", e.backward)):
        if checks:
            contradict = "contradict" if len(checks) > 1 else "contradicts"
            seen += f"; {len(checks)}{which} {contradict} it: {list_few(dict.fromkeys(checks))}"
    seen += f"; {e.uncompared} {'were' if e.uncompared > 1 else 'was'} not compared" if e.uncompared else ""
    seen += f", but it would fail {list_few(e.passing)} too, in which yours is right" if e.passing else ""
    seen += f", but not in a new call like {list_few(e.new_calls)}" if e.new_calls else ""
    mistakes = tuple(c.id for c in e.causes if not c.option)
    labels = (MISTAKE_FOUND, CLOSEST) if mistakes else (OPTION_FOUND, CLOSEST_OPTION)
    # What is wrong comes before what is only to be declared.
    wrong, options = ([c for c in e.causes if bool(c.option) is is_option] for is_option in (False, True))
    first, *others = wrong or options
    # A sentence of its own becomes a part of one.
    headings = [
        first.heading,
        *(f"{c.heading[0].lower()}{c.heading[1:]}" if c.generated else c.heading for c in others),
    ]
    both = " and ".join(c.heading for c in options) if wrong else ""
    also = f"The code also has {both}, which is not declared." if both else ""
    parts = (f"{' and '.join(headings)}.", also, f"{seen}.", "" if was else write_hint(e.causes))
    return Finding(labels[not e.certain], " ".join(filter(None, parts)), mistakes=mistakes)


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
