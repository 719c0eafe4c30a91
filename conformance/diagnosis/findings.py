"""The findings of a whole run: the component to fix first, the known mistake that explains it, and the unknown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from goldformer.conformance.diagnosis.causes import Cause, make_option_cause, write_declaration, write_hint
from goldformer.conformance.diagnosis.printed import find_printed, write_printed
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
from goldformer.conformance.judging.mixed_devices import MixedDevices, Role, find_mixed_devices
from goldformer.conformance.judging.verdict import ERRORS, NO_MISTAKE, WITHHELD, IsolatedMistake, Status, Verdict
from goldformer.conformance.properties.relations import join_names
from goldformer.spec import Mistake, Spec

_MOST_SUSPECTS = 3
_ABSENT = "raise NotImplementedError in the adapter (a process answers −32001): that call is then skipped"
#: Exceptions of code that is not finished, whatever the call.
_NO_VARIANT = tuple(
    f"raised {name}" for name in ("NameError", "UnboundLocalError", "AttributeError", "ImportError", "ModuleNotFound")
)
#: Words in which NumPy and torch say that shapes do not fit.
_OF_SHAPES = re.compile("shape|size|dimension|broadcast|align")
#: The words of an exception about a width that is odd.
_OF_PARITY = re.compile(r"\b(even|odd|divisible by (2|two)|multiple of (2|two))\b", re.IGNORECASE)
#: The mistake that only one property can find.
_DIFFERS = "nondeterminism"
#: The mistake that gives a result a finer dtype than that of its inputs.
_PROMOTES = "dtype-promote"
#: The mistake that leaves a tensor on the CPU, by what it is to the operation that stops.
_OF_ROLE: Mapping[Role, str] = {
    "mask": "device-mask", "ids": "device-ids", "weight": "device-weight", "constant": "device-const",
    "part": "device-part", "target": "device-target", "result": "device-result",
}  # fmt: skip
#: The reasons of failures of tensors on two devices: of a case that stops or answers, and of device-hygiene.
_DEVICE_REASONS = ("raised", "wrong-device", "property")
#: The constant of the positional encoding.
_TABLE = "pe-not-buffer"
#: The labels of the lines that other rooms read.
FIX_FIRST = "Fix first"
#: The first failing check of a component, with its message.
FIRST_SEEN = "First seen"
#: It reproduces every failing case that was compared, and no passing case refutes it: a mistake of the catalogue, or an
#: option that is not declared.
MISTAKE_FOUND = "Mistake found"
OPTION_FOUND = "Option found"
#: It reproduces most failing cases, but not all, or a passing case refutes it.
CLOSEST = "Closest known mistake"
CLOSEST_OPTION = "Closest option"
#: Another mistake explains as much; or no passing case rules it out, and no values were compared.
POSSIBLE_CAUSES = "Possible causes"
NOTHING_KNOWN = "Cause unknown"
#: The place of a mistake that nothing known explains, what is right, and two calls that differ in what shows it.
PLACE = "Place"
HOLDS = "Right by itself"
SMALLEST = "Smallest wrong call"
RIGHT_CALL = "Right call"
#: A component that fails in a way that its failing parts do not explain.
FIX_TOO = "Fix too"
#: What explains the parts of these components explains their own failures.
BECAUSE = "These also fail, perhaps only because of it"
#: Nobody can tell whether the failing parts explain these components.
AGAIN = "These also fail; check them again after the fix"
#: What to change in the adapter, and not in the implementation.
NO_VARIANT = "If it has no such variant"
PRINTED = "If it follows {}"
#: The documents that print the mistake which is named above it.
AS_PRINTED = "As printed in"
COUNTS_AXES = "If it counts a mask's axes"
NO_DTYPE = "If it has no such dtype"
DECLARE_ALL = "For all of these"
ADAPTER_LABELS = (NO_VARIANT, COUNTS_AXES, NO_DTYPE, DECLARE_ALL)
#: The most changes of a call that are listed: each of them makes it right.
_MOST_CHANGES = 3
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


#: Two parts that are wrong by themselves have in common what comes before them and after them.
_ALL_OF_THEM = ", each by itself, or a normalisation or residual that all of them pass"


def diagnose(verdicts: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield what to fix first, which known mistakes explain it, and what is not implemented."""
    verdicts = [v for v in verdicts if v.reason not in NO_MISTAKE]
    judged = {c: [v for v in verdicts if v.component == c and v.is_judged] for c in spec.components}
    absent = [c for c, mine in judged.items() if mine and all(v.reason == "not-implemented" for v in mine)]
    roots, followers = find_failing_roots((v for v in verdicts if v.component not in absent), spec)
    explained = {component: _select_explanations(verdicts, component, spec) for component in (*roots, *followers)}
    for component in roots:
        yield Finding(FIX_FIRST, component, inner=False)
        yield from _describe_first_seen(judged[component], spec)
        bad = [v for v in judged[component] if v.bad]
        found = describe_explanations(explained[component])
        found = found or list(_find_possible_causes(verdicts, bad, component, spec))
        yield from found
        yield from _describe_printed(found, bad, component, spec)
    groups: dict[str, list[str]] = {BECAUSE: [], AGAIN: []}
    for component in followers:
        ranked = rank_explanations(verdicts, component, spec)
        label = _classify_follower(component, judged, explained, ranked, spec)
        if label != FIX_TOO:
            groups[label].append(component)
            continue
        bad = [v for v in judged[component] if v.bad]
        yield Finding(FIX_TOO, component, inner=False)
        found = describe_explanations(explained[component])
        if not found:
            yield from _describe_first_seen(judged[component], spec)
        found = found or list(_find_possible_causes(verdicts, bad, component, spec))
        yield from found
        yield from _describe_printed(found, bad, component, spec)
    yield from _declare_together(explained)
    yield from (Finding(label, ", ".join(names), inner=False) for label, names in groups.items() if names)
    if absent:
        yield Finding("Not implemented", ", ".join(absent), inner=False)
    yield from _describe_not_run(verdicts)
    if faults := [v for v in verdicts if v.is_fault]:
        text = f"{faults[0].message}. Not judged: {list_few(f'{v.check} ({v.dtype})' for v in faults)}"
        yield Finding("Fault in goldformer", text, inner=False)


def _describe_printed(
    found: Sequence[Finding], bad: Sequence[Verdict], component: str, spec: Spec
) -> Iterator[Finding]:
    """Yield the documents that print the mistakes which were found, or print code that raises the dtype of a result."""
    mistakes = {id_ for finding in found for id_ in finding.mistakes}
    if bad and all(v.reason == "wrong-dtype" for v in bad if v.kind == "case"):
        mistakes.add(_PROMOTES)
    errata = find_printed(mistakes, component, {v.check for v in bad}, spec) if mistakes else []
    if errata:
        text = f"{write_printed(errata)}; goldformer explain {errata[0].id} says what is right"
        yield Finding(AS_PRINTED, text)


def _describe_first_seen(judged: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield the first failing check, and how to decline a variant if it raises for one."""
    bad = [v for v in judged if v.bad]
    first = next((v for v in bad if v.reason != ACCEPTED), bad[0])
    yield Finding(FIRST_SEEN, f"{first.check}: {first.message}")
    if first.reason == "raised":
        if variant := _find_variant(judged, spec):
            yield Finding(NO_VARIANT, f"{_ABSENT}. Only calls {variant} raise")
        yield from _describe_errata(judged, spec)
    yield from _describe_dtypes(judged)
    yield from _describe_mask_axes(judged, spec)


def _describe_mask_axes(judged: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield how to give masks more axes if only calls raise whose masks have another number of them."""
    raised = [_list_mask_axes(v, spec) for v in judged if v.bad and v.reason == "raised" and v.kind == "case"]
    usual = {axes for v in judged if v.status is Status.PASSED for axes in _list_mask_axes(v, spec)}
    unusual = [axes - usual for axes in raised]
    if 4 in usual and unusual and all(unusual):
        counts = " or ".join(map(str, sorted(set().union(*unusual))))
        text = "pass four_axes(mask, 4) of goldformer.adapters.layouts, since masks broadcast from the right"
        yield Finding(COUNTS_AXES, f"{text}. Only calls whose mask has {counts} of the four axes raise")


def _list_mask_axes(verdict: Verdict, spec: Spec) -> set[int]:
    """Return the numbers of axes of the masks of a case; nothing of a property or of a call to be refused."""
    case = spec.cases.get(verdict.check) if verdict.kind == "case" else None
    if case is None or case.error is not None:
        return set()
    inputs = spec.contracts[verdict.component].inputs
    return {len(recipe.shape) for name, recipe in case.inputs.items() if inputs[name].kind == "bool"}


def _describe_errata(judged: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield the wrong statements of a document with which code raises in cases that raise here, and not in all cases.

    These errors are about shapes; what is known to raise another one explains itself.
    """
    if not any(v.status is Status.PASSED and v.kind == "case" for v in judged):
        return
    raised = {v.check for v in judged if v.reason == "raised" and _OF_SHAPES.search(v.message)}
    raised -= {v.check for v in judged if v.reason == "raised" and _name_error(v, spec)}
    for erratum in spec.errata.values():
        if erratum.raises and raised >= {*erratum.proof}:
            text = f"{erratum.id}, {erratum.printed}. It is wrong: {erratum.correct}"
            yield Finding(PRINTED.format(erratum.document), text)


def _describe_dtypes(judged: Sequence[Verdict]) -> Iterator[Finding]:
    """Yield what to declare if calls raise in some dtypes only, in which the code may never have been meant to run."""
    raising = {v.dtype for v in judged if v.bad and v.reason == "raised"}
    works = [d for d in dict.fromkeys(v.dtype for v in judged if v.status is Status.PASSED) if d not in raising]
    if raising and works:
        names = ", ".join(f'"{dtype}"' for dtype in works)
        comma = "," if len(works) == 1 else ""
        text = f"declare DTYPES = ({names}{comma}) in the adapter. Only calls in {list_few(sorted(raising))} raise"
        yield Finding(NO_DTYPE, text)


def _find_variant(judged: Sequence[Verdict], spec: Spec) -> str:
    """Return what all calls that raise have and no call that passes has, in words, or "".

    Only what an implementation may do without counts: an optional argument that is given, or one that is left out, or
    two widths that differ, where the exceptions are about shapes, or an input of odd width.
    """
    raised = [v for v in judged if v.reason == "raised" and v.kind == "case" and _asks_for_result(v, spec)]
    if any(v.message.startswith(_NO_VARIANT) or find_mixed_devices(v.message) or _name_error(v, spec) for v in raised):
        return ""
    passed = [v for v in judged if v.status is Status.PASSED and v.kind == "case"]
    usual = {trait for v in passed for trait in _list_traits(v, spec)}
    unusual = [_list_traits(v, spec) - usual for v in raised]
    if not any(unusual) and all(_OF_SHAPES.search(v.message) for v in raised):
        usual = {trait for v in passed for trait in _list_widths(v, spec)}
        unusual = [_list_widths(v, spec) - usual for v in raised]
    if not any(unusual) and all(_OF_PARITY.search(v.message) for v in raised):
        usual = {trait for v in passed for trait in _list_odd_widths(v, spec)}
        unusual = [_list_odd_widths(v, spec) - usual for v in raised]
    if not passed or not raised or not all(unusual):
        return ""
    # Where calls of many kinds raise and none is common to all, the kinds say nothing.
    listed = set.intersection(*unusual) or set().union(*unusual)
    return " or ".join(sorted(listed)) if len(listed) <= _FEW else ""


def _asks_for_result(verdict: Verdict, spec: Spec) -> bool:
    """Return True unless a check is a case whose call must be refused."""
    case = spec.cases.get(verdict.check)
    return case is None or case.error is None


def _list_traits(verdict: Verdict, spec: Spec) -> set[str]:
    """Return which optional arguments the call of a case has, and which optional parameters it leaves out."""
    case, contract = spec.cases.get(verdict.check), spec.contracts[verdict.component]
    if case is None or case.error is not None:
        return set()
    given = {*case.inputs, *case.attributes}
    params = contract.params_for(case.attributes)
    left_out = {name for name, array in params.items() if array.optional and name not in case.params}
    traits = {f"with {name}" for name in contract.optional & given}
    traits |= {f"without {name.rpartition('.')[2]}" for name in left_out}
    return traits | ({"of gradients"} if case.cotangent is not None else set())


def _list_widths(verdict: Verdict, spec: Spec) -> set[str]:
    """Return which widths of the parameters differ in the call of a case."""
    case = spec.cases.get(verdict.check)
    if case is None or case.error is not None:
        return set()
    params = spec.contracts[verdict.component].params_for(case.attributes)
    widths = {str(axis): axis.size(case.sizes) for array in params.values() for axis in array.shape.axes}
    differing = combinations([name for name in widths if "d_" in name], 2)
    return {f"where {one} is not {other}" for one, other in differing if widths[one] != widths[other]}


def _list_odd_widths(verdict: Verdict, spec: Spec) -> set[str]:
    """Return which widths of the inputs are odd in the call of a case."""
    case = spec.cases.get(verdict.check)
    if case is None or case.error is not None:
        return set()
    last = (array.shape.axes[-1] for array in spec.contracts[verdict.component].inputs.values() if array.shape.axes)
    widths = {str(axis): axis.size(case.sizes) for axis in last if str(axis).startswith("d_")}
    return {f"where {name} is odd" for name, size in widths.items() if size % 2}


def _classify_follower(
    component: str,
    judged: Mapping[str, Sequence[Verdict]],
    explained: Mapping[str, Sequence[Explanation]],
    ranked: Sequence[Explanation],
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
    if not bad:
        return FIX_TOO
    if best := next(iter(explained[component]), None):
        return BECAUSE if best.certain and all(_is_inherited(c, known) for c in best.causes) else FIX_TOO
    if any(e.equals and all(_is_inherited(c, known) and not _may_stay(c) for c in e.causes) for e in ranked):
        return AGAIN
    if any(v.matches is not None and v.differences for v in bad):
        # A part that nothing known explains cannot be imitated in the whole, nor can a cache that reads word by word
        # what is wrong in a model. What is wrong in the loop itself is said at once.
        isolated = next(filter(None, (v.isolated for v in bad)), None)
        in_model = isolated is not None and "loop" not in isolated.places
        decodes = "bos_id" in spec.contracts[component].attributes
        return AGAIN if (decodes and in_model) or not all(explained[part] for part in parts) else FIX_TOO
    places = {_find_place(v) for part in parts for v in judged[part] if v.reason == "raised"}
    raised = [v for v in bad if v.reason == "raised"]
    if raised and len(raised) == len(bad):
        return BECAUSE if all(_find_place(v) in places for v in raised) else FIX_TOO
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


def _may_stay(cause: Cause) -> bool:
    """Return True for what may be deliberate: it is not fixed, so that nothing is checked again after it."""
    from goldformer.conformance.diagnosis.mistakes import ON_PURPOSE  # a run that passes needs no catalogue

    return cause.id in ON_PURPOSE


def _find_place(verdict: Verdict) -> tuple[str, str]:
    """Return the type of an exception and the line of the implementation that raised it."""
    return verdict.message.partition(":")[0], verdict.message.rpartition("(")[2].partition(")")[0]


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


def _describe_not_run(verdicts: Sequence[Verdict]) -> Iterator[Finding]:
    """Yield the properties that the implementation kept from running, although nothing is wrong with it."""
    stopped = [v for v in verdicts if v.kind == "property" and v.message.startswith(NOT_RUN)]
    for check in dict.fromkeys(v.check for v in stopped):
        mine = [v for v in stopped if v.check == check]
        names = list_few(dict.fromkeys(v.component for v in mine))
        yield Finding("Could not be checked", f"{check} of {names}: {mine[0].message}", inner=False)


def _find_possible_causes(
    verdicts: Sequence[Verdict], bad: Sequence[Verdict], component: str, spec: Spec
) -> Iterator[Finding]:
    """Yield possible causes of failures that no known mistake explains, or the place where values first go wrong."""
    # The message of a missing output is enough, and so is that of a bad call that is accepted.
    verdicts = [v for v in verdicts if v.reason not in (WITHHELD, ACCEPTED)]
    bad = [v for v in bad if v.reason not in (WITHHELD, ACCEPTED)]
    if not bad:
        return
    if differs := next((v for v in bad if v.reason == "property" and v.catches == (_DIFFERS,)), None):
        # A result that changes with each call matches no mistake, and any output may be the first wrong one. A call
        # that raised, or broke the contract, has no second result to compare.
        mistake = spec.mistakes[_DIFFERS]
        text = f"{_DIFFERS}, {mistake.title}: {differs.message}. {mistake.hint}"
        yield Finding(MISTAKE_FOUND, text, mistakes=(_DIFFERS,))
        return
    mixed = _describe_mixed_devices(bad, component, spec) + _describe_errors(bad, spec)
    yield from mixed
    advice = _select_advice(bad)
    yield from (Finding("Convention", text) for text in advice)
    wrong = [v for v in bad if v.differences and v.advice not in advice]
    if any(v.matches is not None for v in wrong):
        yield Finding(NOTHING_KNOWN, "No known mistake reproduces this output; " + _describe_first_wrong(wrong))
        yield from _describe_isolated(next(filter(None, (v.isolated for v in bad)), None), spec)
        return
    # The message of an exception or a wrong shape is enough; only wrong values hint at mistakes.
    if mixed or advice or not any(v.reason in ("wrong-value", "not-finite", "property") for v in bad):
        return
    if any(v.reason in ERRORS for v in bad):
        return
    for suspect in _select_likely(rank_suspects(verdicts, component, spec)):
        fits = f"It fits {suspect.explains} of {suspect.failing} failing checks."
        text = f"{suspect.mistake.id}, {suspect.mistake.title}. {fits} {suspect.mistake.hint}"
        yield Finding(POSSIBLE_CAUSES, text, mistakes=(suspect.mistake.id,))


def _describe_mixed_devices(bad: Sequence[Verdict], component: str, spec: Spec) -> list[Finding]:
    """Return the mistakes that leave a tensor on the CPU, as the messages of the failing checks name it."""
    seen: dict[str, list[tuple[Verdict, MixedDevices]]] = {}
    for verdict in bad:
        mixed = find_mixed_devices(verdict.message) if verdict.reason in _DEVICE_REASONS else None
        if mixed is not None and mixed.role in _OF_ROLE:
            own = _TABLE if (mixed.role, component) == ("constant", "positional_encoding") else _OF_ROLE[mixed.role]
            seen.setdefault(own, []).append((verdict, mixed))
    findings = []
    for id_, stopped in sorted(seen.items(), key=lambda item: -len(item[1])):
        verdict, mixed = stopped[0]
        mistake = spec.mistakes[id_]
        place = _find_place(verdict)[1]
        operand = f"the {mixed.operand} of {mixed.operation}" if mixed.operation else mixed.operand
        where = f"In {component} {operand} is on the CPU{f' ({place})' if mixed.operation else ''}."
        text = (
            f"{id_}, {mistake.title}. {where} It explains {len(stopped)} of {len(bad)} failing checks. {mistake.hint}"
        )
        # What is added may be anything.
        label = POSSIBLE_CAUSES if mixed.role == "constant" else MISTAKE_FOUND
        findings.append(Finding(label, text, mistakes=(id_,)))
    return findings


def _describe_errors(bad: Sequence[Verdict], spec: Spec) -> list[Finding]:
    """Return the mistakes whose errors the failing checks raise."""
    counted = Counter(mistake for v in bad if (mistake := _name_error(v, spec)))
    possible = Counter(m for v in bad if v.reason == "raised" for m in _list_possible(v, spec))
    findings = []
    for label, counts in ((MISTAKE_FOUND, counted), (POSSIBLE_CAUSES, possible)):
        for mistake, count in counts.most_common():
            explains = f"It raises the error of {count} of {len(bad)} failing checks."
            text = f"{mistake.id}, {mistake.title}. {explains} {mistake.hint}"
            findings.append(Finding(label, text, mistakes=(mistake.id,)))
    return findings


def _list_possible(verdict: Verdict, spec: Spec) -> list[Mistake]:
    """Return the mistakes of a component and its parts that raise the error of a check, as other code may."""
    inside = {verdict.component, *spec.list_dependencies(verdict.component)}
    named = [m for m in spec.mistakes.values() if m.possible_error and m.component in inside]
    return [m for m in named if m.possible_error and m.possible_error in verdict.message]


def _name_error(verdict: Verdict, spec: Spec) -> Mistake | None:
    """Return the known mistake that a check's error gives away, if any."""
    if verdict.reason != "raised":
        return None
    return next((m for m in spec.mistakes.values() if m.error and m.error in verdict.message), None)


def _describe_isolated(isolated: IsolatedMistake | None, spec: Spec) -> Iterator[Finding]:
    """Yield the place of a mistake that nothing explains, what is right, and the two calls that differ."""
    if isolated is None:
        return
    if isolated.options:
        causes = [make_option_cause(name, option, spec) for name, option in isolated.options]
        fits = f"calls with silent parts fit {join_names([c.heading for c in causes])}"
        yield Finding("Convention", f"{fits}; {write_declaration(causes)}, or fix it. What follows holds under it")
    yield Finding(PLACE, " and ".join(isolated.names) + (_ALL_OF_THEM if len(isolated.names) > 1 else ""))
    if isolated.holds:
        yield Finding(HOLDS, join_names(isolated.holds))
    yield Finding(SMALLEST, f"{isolated.wrong_call}: {isolated.element}")
    if isolated.right_with:
        changes = [f"with {words}" for words in isolated.right_with[:_MOST_CHANGES]]
        yield Finding(RIGHT_CALL, f"the same {', or '.join(changes)}")


def list_unknown(verdicts: Sequence[Verdict], spec: Spec) -> list[str]:
    """Return the components whose failures nothing known explains."""
    unknown, component = [], ""
    for finding in diagnose(verdicts, spec) if any(v.bad for v in verdicts) else ():
        component = component if finding.inner else finding.text
        if finding.label == NOTHING_KNOWN:
            unknown.append(component)
    return unknown


def _select_advice(bad: Sequence[Verdict]) -> list[str]:
    """Return the advice that fits at least half of the failing cases with wrong values, and of those that raise."""
    kept: list[str] = []
    for raised in (False, True):
        mine = [v for v in bad if v.kind == "case" and (v.reason in ERRORS) is raised]
        counted = Counter(v.advice for v in mine if v.advice)
        kept += [text for text, count in counted.most_common(1) if 2 * count >= len(mine)]
    return kept


def _select_explanations(verdicts: Sequence[Verdict], component: str, spec: Spec) -> list[Explanation]:
    """Return the explanations of at least half of the failing cases, best first.

    Two mistakes together must explain nine in ten: there are so many pairs that some fit a few cases by chance. With a
    number that was solved for much can be fitted: it must explain all of several cases, or a new call.
    """

    def fits(e: Explanation) -> bool:
        if any(c.solved for c in e.causes):
            return e.certain and (e.equals > 1 or e.confirmed)
        several = sum(not c.option for c in e.causes) > 1
        return 10 * e.equals >= 9 * e.case_count if several else 2 * e.equals >= e.case_count

    return [e for e in rank_explanations(verdicts, component, spec) if fits(e)]


def describe_explanations(found: Sequence[Explanation], among: str = "failing", *, was: bool = False) -> list[Finding]:
    """Return the best explanation, and those that are as good.

    It is labelled as found if it reproduces every failing case that was compared, no passing case refutes it, and no
    other mistake explains as much, unless that gives the same in every case; as the closest one if a case refutes it.
    `was` says that it explains an earlier result: there is nothing to fix.
    """
    best = [e for e in found if is_as_good(e, found[0])]
    # The first one is contradicted only if all are.
    best = [e for e in best if e.contradicted is best[0].contradicted]
    told = [e for place, e in enumerate(best) if not any(e.adds_nothing_to(better) for better in best[:place])]
    # Two neighbours that no case tells apart are two descriptions of one thing, and so is one mistake in two places.
    told = [e for place, e in enumerate(told) if not place or not (e.generated or _is_elsewhere(e, told[0]))]
    findings = [_describe_explanation(e, among, was=was) for e in told[:_MOST_SUSPECTS]]
    # Another mistake explains as much: the first one is no more than possible.
    rivals = [e for e in told[1:] if len(e.causes) == len(told[0].causes) and e.ids not in told[0].twins]
    if findings and findings[0].mistakes and rivals:
        findings[0] = replace(findings[0], label=POSSIBLE_CAUSES)
    for place, finding in enumerate(findings[1:], 1):
        same = " No case tells the two apart." if told[place].ids in told[0].twins else ""
        findings[place] = replace(finding, label="Or", text=f"{finding.text}{same}")
    return findings


def _is_elsewhere(e: Explanation, best: Explanation) -> bool:
    """Return True if an explanation is the best one in another place, and no case tells the two apart."""
    return e.ids in best.twins and {c.id for c in e.causes} == {c.id for c in best.causes}


def _describe_explanation(e: Explanation, among: str, *, was: bool) -> Finding:
    output = "the recorded output" if was else "your output"
    seen = f"It reproduces {output} in {e.equals} of {e.case_count} {among} cases ({describe_distance(e.ratio)})"
    seen += f", but not in {list_few(dict.fromkeys(e.refuting))}" if e.refuting else ""
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
