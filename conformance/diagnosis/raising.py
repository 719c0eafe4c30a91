"""Advice about calls that raise: what only they have, and the known mistakes that their errors give away."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from goldformer.conformance.diagnosis.finding import (
    COUNTS_AXES,
    FEW,
    IS_HELPER,
    MISTAKE_FOUND,
    NO_DTYPE,
    NO_VARIANT,
    POSSIBLE_CAUSES,
    PRINTED,
    RIGHT_HERE,
    Finding,
    list_few,
)
from goldformer.conformance.judging.mixed_devices import MixedDevices, Role, find_mixed_devices
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.spec import Case, Mistake, Spec
from goldformer.spec.shapes import Axis

_ABSENT: Final = "raise NotImplementedError in the adapter (a process answers −32001): that call is then skipped"
_OF_ONE_WIDTH: Final = (
    'call require_square_projections(params, ("w_k", "w_v")) of goldformer.adapters.layouts before the code is built '
    "or called, if no heads share keys in it (a process answers −32001): such calls are then skipped"
)
#: The trait of such calls, in words. Where heads share no keys, the convention projection_widths permits them to raise.
_OF_KEYS: Final = ("w_k", "w_v")
_NOT_SQUARE: Final = "whose w_k or w_v is not square"
#: Exceptions of code that is not finished, whatever the call.
_NO_VARIANT: Final = tuple(
    f"raised {name}" for name in ("NameError", "UnboundLocalError", "AttributeError", "ImportError", "ModuleNotFound")
)
#: The error of a mapping without a key, as a verdict quotes it.
_KEY_ERROR: Final = re.compile(r"raised KeyError: '([\w.]+)'")
#: Words in which NumPy and torch say that shapes do not fit.
_OF_SHAPES: Final = re.compile("shape|size|dimension|broadcast|align")
#: The words of an exception about a width that code cannot build; an assertion often has none.
_OF_WIDTH: Final = re.compile(
    f"{_OF_SHAPES.pattern}|divi[sd]|multiple|split|square|width|do not fit|^raised AssertionError"
)
#: The words of an exception about a width that is odd.
_OF_PARITY: Final = re.compile(r"\b(even|odd|divisible by (2|two)|multiple of (2|two))\b", re.IGNORECASE)
#: What exceptions say of a divisor that is 0 for some sizes.
_OF_NOUGHT: Final = re.compile("ZeroDivisionError|divi(de|sion) by zero")
#: The mistake that leaves a tensor on the CPU, by what it is to the operation that stops.
_OF_ROLE: Final[Mapping[Role, str]] = {
    "mask": "device-mask", "ids": "device-ids", "weight": "device-weight", "constant": "device-const",
    "part": "device-part", "target": "device-target", "result": "device-result",
}  # fmt: skip
#: The reasons of failures of tensors on two devices: of a case that stops or answers, and of device-hygiene.
_DEVICE_REASONS: Final = ("raised", "wrong-device", "property", "gpu")
#: The same for a constant in the positional encoding.
_TABLE_ON_CPU: Final = "pe-not-buffer"


def describe_limits(first: Verdict, judged: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield how to decline or declare what an implementation does not support, if only such calls of it raise.

    `first` is the first failing check of the component.
    """
    if first.reason == "raised":
        yield from _describe_helper(first, spec)
        if variant := _find_variant(judged, spec):
            advice = _OF_ONE_WIDTH if variant == _NOT_SQUARE else _ABSENT
            cases = {v.check: v.reason == "raised" for v in judged if v.kind == "case" and _asks_for_result(v, spec)}
            cost = f"This leaves out {sum(cases.values())} of {len(cases)} cases"
            yield Finding(NO_VARIANT, f"{advice}. {cost}. Only calls {variant} raise")
        yield from _describe_errata(judged, spec)
    yield from _describe_dtypes(judged)
    yield from _describe_mask_axes(judged, spec)


def _describe_helper(first: Verdict, spec: Spec) -> Iterator[Finding]:
    """Yield that a function may be only a helper if it asks for a parameter of a larger component."""
    asked = _KEY_ERROR.search(first.message)
    known = spec.contracts[first.component].params
    if asked and asked[1] not in known and asked[1].rpartition(".")[2] in known:
        text = f"rename it, such as to _{first.component}: {first.component} has no parameter {asked[1]}"
        yield Finding(IS_HELPER, text)


def _describe_mask_axes(judged: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield how to give masks more axes if only calls raise whose masks have another number of them."""
    raised = [_list_mask_axes(v, spec) for v in judged if v.bad and v.reason == "raised" and v.kind == "case"]
    usual = {axes for v in judged if v.status is Status.PASSED for axes in _list_mask_axes(v, spec)}
    unusual = [axes - usual for axes in raised]
    if 4 in usual and unusual and all(unusual):
        counts = " or ".join(map(str, sorted(set().union(*unusual))))
        text = "pass four_axes_mask(mask) of goldformer.adapters.layouts, since masks broadcast from the right"
        yield Finding(COUNTS_AXES, f"{text}. Only calls whose mask has {counts} of the four axes raise")


def _list_mask_axes(verdict: Verdict, spec: Spec) -> set[int]:
    """Return the numbers of axes of the masks of a case; nothing of a property or of a call to be refused."""
    case = _find_call(verdict, spec)
    if case is None:
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

    Only what an implementation may do without counts: an optional argument that is given, or one that is left out, or a
    beam of more sentences than there are words, or projections that are not square, or two widths that differ, where
    the exceptions are about shapes, or an input of odd width, or an axis of one or two where a division by 0 raises, as
    by the number of the other words.
    """
    raised = [v for v in judged if v.reason == "raised" and v.kind == "case" and _asks_for_result(v, spec)]
    if any(v.message.startswith(_NO_VARIANT) or find_mixed_devices(v.message) or _name_error(v, spec) for v in raised):
        return ""
    passed = [v for v in judged if v.status is Status.PASSED and v.kind == "case"]
    of_width = all(_OF_WIDTH.search(v.message.rpartition("(")[0] or v.message) for v in raised)
    unusual = _find_unusual(raised, passed, _list_projections, spec) if of_width else []
    if not unusual or not all(unusual):
        unusual = _find_unusual(raised, passed, _list_traits, spec)
    for pattern, list_traits in ((_OF_SHAPES, _list_widths), (_OF_PARITY, _list_odd_widths), (_OF_NOUGHT, _list_short)):
        if not any(unusual) and all(pattern.search(v.message) for v in raised):
            unusual = _find_unusual(raised, passed, list_traits, spec)
    if not passed or not raised or not all(unusual):
        return ""
    # Where calls of many kinds raise and none is common to all, the kinds say nothing.
    listed = set.intersection(*unusual) or set().union(*unusual)
    return " or ".join(sorted(listed)) if len(listed) <= FEW else ""


def _find_unusual(
    raised: Sequence[Verdict], passed: Sequence[Verdict], list_traits: Callable[[Case, Spec], set[str]], spec: Spec
) -> list[set[str]]:
    """Return for each call that raises the traits that no call which passes has."""

    def list_all(verdict: Verdict) -> set[str]:
        case = _find_call(verdict, spec)
        return set() if case is None else list_traits(case, spec)

    usual = {trait for verdict in passed for trait in list_all(verdict)}
    return [list_all(verdict) - usual for verdict in raised]


def _find_call(verdict: Verdict, spec: Spec) -> Case | None:
    """Return the case of the spec that was judged; None for a property, and for a call that must be refused."""
    case = spec.cases.get(verdict.check) if verdict.kind == "case" else None
    return case if case is not None and case.error is None else None


def _asks_for_result(verdict: Verdict, spec: Spec) -> bool:
    """Return True unless a check is a case whose call must be refused."""
    case = spec.cases.get(verdict.check)
    return case is None or case.error is None


def _list_traits(case: Case, spec: Spec) -> set[str]:
    """Return which optional arguments the call of a case has, which it leaves out, and if its beams outnumber words."""
    contract = spec.contracts[case.component]
    given = {*case.inputs, *case.attributes}
    params = contract.params_for(case.attributes)
    left_out = {name for name, array in params.items() if array.optional and name not in case.params}
    traits = {f"with {name}" for name in contract.optional & given}
    traits |= {f"without {name.rpartition('.')[2]}" for name in left_out}
    beams = case.attributes.get("beam_size", 0)
    more = isinstance(beams, int) and beams > case.sizes.get("vocab", beams)
    traits |= {"with more beams than words"} if more else set()
    return traits | ({"of gradients"} if case.cotangent is not None else set())


def _list_projections(case: Case, spec: Spec) -> set[str]:
    """Return whether the projections of keys or values are not square in the call of a case, in words."""
    del spec
    shapes = (recipe.shape for name, recipe in case.params.items() if name.rpartition(".")[2] in _OF_KEYS)
    return {_NOT_SQUARE} if any(shape[0] != shape[-1] for shape in shapes) else set()


def _list_widths(case: Case, spec: Spec) -> set[str]:
    """Return which widths of the parameters differ in the call of a case."""
    params = spec.contracts[case.component].params_for(case.attributes)
    widths = _measure_axes((axis for array in params.values() for axis in array.shape.axes), case)
    differing = combinations([name for name in widths if "d_" in name], 2)
    return {f"where {one} is not {other}" for one, other in differing if widths[one] != widths[other]}


def _list_odd_widths(case: Case, spec: Spec) -> set[str]:
    """Return which widths of the inputs are odd in the call of a case."""
    last = (array.shape.axes[-1] for array in spec.contracts[case.component].inputs.values() if array.shape.axes)
    widths = _measure_axes((axis for axis in last if str(axis).startswith("d_")), case)
    return {f"where {name} is odd" for name, size in widths.items() if size % 2}


def _list_short(case: Case, spec: Spec) -> set[str]:
    """Return which axes of the inputs have one or two places in the call of a case."""
    axes = (axis for array in spec.contracts[case.component].inputs.values() for axis in array.shape.axes)
    return {f"where {name} is {size}" for name, size in _measure_axes(axes, case).items() if size in (1, 2)}


def _measure_axes(axes: Iterable[Axis], case: Case) -> dict[str, int]:
    """Return the sizes of axes by name, without those of arguments that the call of a case does not have."""
    return {str(axis): axis.size(case.sizes) for axis in axes if case.sizes.keys() >= {*axis.symbols}}


def describe_mixed_devices(bad: Sequence[Verdict], component: str, spec: Spec) -> list[Finding]:
    """Return the mistakes that leave a tensor on the CPU, as the messages of the failing checks name it."""
    findings = []
    for mistake, stopped, where in _list_mixed_devices(bad, component, spec):
        explains = f"It explains {len(stopped)} of {len(bad)} failing checks."
        # What is added may be anything.
        label = POSSIBLE_CAUSES if stopped[0][1].role == "constant" else MISTAKE_FOUND
        text = f"{mistake.id}, {mistake.title}. {where} {explains} {mistake.hint}"
        findings.append(Finding(label, text, mistakes=(mistake.id,)))
    return findings


def find_gpu_failures(verdicts: Sequence[Verdict], spec: Spec) -> Iterator[Finding]:
    """Yield for each component what is right here and would fail on a GPU, unless a part of it would too."""
    affected = {v.component for v in verdicts if v.reason == "gpu"}
    for component in (c for c in spec.components if c in affected and affected.isdisjoint(spec.list_dependencies(c))):
        mine = [v for v in verdicts if v.reason == "gpu" and v.component == component]
        text, mistakes = f"{component}: {mine[0].message}.", tuple[str, ...]()
        for mistake, stopped, where in _list_mixed_devices(mine, component, spec):
            perhaps = "perhaps " if stopped[0][1].role == "constant" else ""
            text, mistakes = f"{perhaps}{mistake.id}, {mistake.title}. {where} {mistake.hint}", (mistake.id,)
        fails = 'Only --strict, --device or DEVICES = ("cpu", "cuda") fails it'
        yield Finding(RIGHT_HERE, f"{text} {fails}", inner=False, mistakes=mistakes)


def _list_mixed_devices(
    bad: Sequence[Verdict], component: str, spec: Spec
) -> Iterator[tuple[Mistake, list[tuple[Verdict, MixedDevices]], str]]:
    """Yield the mistakes that leave a tensor on the CPU, most frequent first, their verdicts, and the first place."""
    seen: dict[str, list[tuple[Verdict, MixedDevices]]] = {}
    for verdict in bad:
        mixed = find_mixed_devices(verdict.message) if verdict.reason in _DEVICE_REASONS else None
        if mixed is not None and mixed.role in _OF_ROLE:
            own = (
                _TABLE_ON_CPU
                if (mixed.role, component) == ("constant", "positional_encoding")
                else _OF_ROLE[mixed.role]
            )
            seen.setdefault(own, []).append((verdict, mixed))
    for id_, stopped in sorted(seen.items(), key=lambda item: -len(item[1])):
        verdict, mixed = stopped[0]
        place = find_place(verdict)[1]
        operand = f"the {mixed.operand} of {mixed.operation}" if mixed.operation else mixed.operand
        yield (
            spec.mistakes[id_],
            stopped,
            f"In {component} {operand} is on the CPU{f' ({place})' if mixed.operation else ''}.",
        )


def describe_errors(bad: Sequence[Verdict], spec: Spec) -> list[Finding]:
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


def find_place(verdict: Verdict) -> tuple[str, str]:
    """Return the type of an exception and the line of the implementation that raised it."""
    return verdict.message.partition(":")[0], verdict.message.rpartition("(")[2].partition(")")[0]
