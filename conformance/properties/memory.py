"""Properties of every component about memory: its layout, what lies around arrays, at which addresses, in new ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np

from goldformer.adapters.dtypes import choose_filler
from goldformer.conformance.judging.applicability import find_working_case, select_plain_cases
from goldformer.conformance.judging.invoke import (
    NOT_RUN,
    Arguments,
    BadResult,
    CallProblem,
    NotCheckable,
    mirror,
    read_arguments,
)
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import (
    Array,
    NotAdvised,
    PlainCall,
    Run,
    Subject,
    Violation,
    with_all_digits,
)
from goldformer.spec.ways import LAYOUTS

#: The numbers that stand around arrays, and in memory without values; and the elements before and after an array. With
#: an odd number of them before it, it begins at no multiple of 16 bytes.
_FILLERS: Final = ((math.nan, 4096), (3.0, 4097))
_AFTER: Final = 4096

#: The cases in which results are looked at for memory that they share.
_MOST_CASES: Final = 3

#: The elements around an array at an address of its own.
_APART: Final = 1 << 10
#: The most numbers that a large call is given.
_LARGE: Final = 1 << 14

Outputs = Mapping[str, Array]


@holds("memory-layout")
def memory_layout(subject: Subject) -> None:
    """Require that transposed and strided views give what contiguous arrays of the same values give."""
    if not subject.library.views:
        raise NotCheckable(f"{subject.bench.adapter.arrays} arrays are never views of others")
    settled = [c for c in select_plain_cases(subject.component, subject.bench) if not c.random]
    if not settled:
        find_working_case(subject.component, subject.bench)
        raise NotCheckable(f"what {subject.component} gives is drawn at random, in whatever order")
    arguments = read_arguments(find_working_case(subject.component, subject.bench, settled))
    _compare_layouts(subject, PlainCall(arguments, partial(subject.call, arguments)))
    if subject.contract.outputs[subject.contract.first_output].kind != "float":
        return  # rounding decides between words that no proof keeps apart
    with suppress(CallProblem):
        arguments = with_all_digits(arguments)
        plain = PlainCall(arguments, partial(subject.call, arguments))
        # Inputs that are no distribution any longer may have no finite result.
        if all(np.isfinite(output).all() for output in plain.outputs.values()):
            _compare_layouts(subject, plain)


def _compare_layouts(subject: Subject, plain: PlainCall) -> None:
    for layout, way in LAYOUTS.items():
        claim = f"{layout} views of the same values give something else"
        run = partial(subject.call, plain.arguments, way=way)
        try:
            subject.require_same(plain, run, claim, "non-contiguous", "memory layout")
        except BadResult as bad:
            raise NotAdvised(f"needs contiguous arrays: with {layout} views of the same values it {bad}") from bad


def _make_plain_calls(subject: Subject, make: Callable[[Arguments], Run]) -> Iterator[PlainCall]:
    """Yield the first call that the implementation runs, the largest one, and that with the most odd sizes.

    Blocks are filled by some of them and not by others. Decoding has the first only: it calls the model for each word.
    """
    first = find_working_case(subject.component, subject.bench)
    yield PlainCall(arguments := read_arguments(first), make(arguments))
    if "bos_id" in subject.contract.attributes:
        return
    small = [case for case in select_plain_cases(subject.component, subject.bench) if case.size <= _LARGE]
    largest = max(small, key=lambda case: case.size, default=first)
    odd = max(small, key=lambda case: (sum(size % 2 for size in case.sizes.values()), case.size), default=first)
    for case in {case.id: case for case in (largest, odd) if case.id != first.id}.values():
        with suppress(CallProblem):  # golden cases tell
            plain = PlainCall(arguments := read_arguments(case), make(arguments))
            yield plain


@holds("memory-around")
def memory_around(subject: Subject) -> None:
    """Require that arrays which are parts of larger ones give the same, and that what lies around them stays.

    On a GPU only --strict asks for arrays at odd addresses: a kernel that needs others takes the device down.
    """
    if not subject.library.views:
        raise NotCheckable(f"{subject.bench.adapter.arrays} arrays are never parts of others")
    try:
        _compare_surroundings(subject)
    except BadResult as bad:
        raise NotAdvised(f"needs arrays with memory of their own: with parts of larger ones it {bad}") from bad


def _compare_surroundings(subject: Subject) -> None:
    """Require the same result between zeros, between NaN, and at an odd address between other numbers."""
    may_be_odd = subject.bench.computes_on_cpu or subject.bench.policy.strict
    # Not the arrays by themselves: what lies around these is unknown, and may be NaN too.
    for plain in _make_plain_calls(subject, lambda call: partial(_run_surrounded, subject, call, 0.0, _AFTER)):
        for around, before in _FILLERS:
            run = partial(_run_surrounded, subject, plain.arguments, around, before if may_be_odd else before // 2 * 2)
            claim = f"arrays that are parts of larger ones, whose other elements are {around:g}, give something else"
            subject.require_same(plain, run, claim, "reads-around")


def _run_surrounded(subject: Subject, arguments: Arguments, around: float, before: int) -> Outputs:
    """Return the outputs of a call with parts of larger arrays; Violation if it writes to the rest of these."""
    library, larger = subject.library, {}

    def surround(name: str, array: Any) -> Any:
        view, larger[name] = library.surround(array, before, _AFTER, around)
        return view

    outputs = subject.run(arguments, _map_arrays(subject, subject.make(arguments), surround)).outputs
    for name, whole in larger.items():
        values = library.numpy(whole)
        rest = np.concatenate((values[:before], values[-_AFTER:]))
        if not np.array_equal(
            rest, np.full_like(rest, choose_filler(rest.dtype.kind, around)), equal_nan=rest.dtype.kind == "f"
        ):
            message = f"writes to memory around {name}, which is a part of a larger array"
            raise Violation(message, shows="writes-around")
    return outputs


def _map_arrays(
    subject: Subject, given: Mapping[str, Any], change: Callable[[str, Any], Any], group: str = ""
) -> dict[str, Any]:
    """Return the arguments of a call with every array changed, those of the parameters too."""
    changed = dict(given)
    for name, value in given.items():
        if isinstance(value, Mapping):
            changed[name] = _map_arrays(subject, value, change, f"{name}.")
        elif subject.library.is_array(value):
            changed[name] = change(group + name, value)
    return changed


@holds("same-storage")
def same_storage(subject: Subject) -> None:
    """Require that a result follows from the numbers of the arrays, at whichever address they are.

    Other numbers in the same arrays give their own result, and new arrays with the old numbers the old one, while the
    old arrays still hold the others.
    """
    arguments = read_arguments(find_working_case(subject.component, subject.bench))
    other = next(_make_others(subject, arguments), None)
    if other is None:
        raise NotCheckable(f"{subject.component} runs with no other numbers of the same sizes")
    # All arrays stay, at addresses that no other call had: nothing can be kept for these yet.
    kept: list[Mapping[str, Any]] = []

    def make(chosen: Arguments) -> Mapping[str, Any]:
        kept.append(_make_apart(subject, chosen))
        return kept[-1]

    def run_in_same_arrays() -> Outputs:
        given = make(arguments)
        subject.run(arguments, given)
        _overwrite(subject, given, subject.make(other))
        return subject.run(other, given).outputs

    def run_in_new_arrays() -> Outputs:
        run_in_same_arrays()
        return subject.run(arguments, make(arguments)).outputs

    plain, plain_other = (_make_plain(subject, chosen, make(chosen)) for chosen in (arguments, other))
    claim = "other numbers in the same arrays do not give their own result"
    subject.require_same(plain_other, run_in_same_arrays, claim, "kept-by-address")
    claim = "new arrays do not give the result of their numbers after the arrays of an earlier call got others"
    subject.require_same(plain, run_in_new_arrays, claim, "kept-by-address")


def _make_apart(subject: Subject, arguments: Arguments) -> dict[str, Any]:
    """Make the arrays of a call as parts of larger ones, where the library has such."""
    given = subject.make(arguments)
    if not subject.library.views:
        return given
    return _map_arrays(subject, given, lambda _, array: subject.library.surround(array, _APART, _APART, 0)[0])


def _make_plain(subject: Subject, arguments: Arguments, given: Mapping[str, Any]) -> PlainCall:
    """Return a call that is repeated with the same arrays."""
    return PlainCall(arguments, lambda: subject.run(arguments, given).outputs)


def _make_others(subject: Subject, arguments: Arguments) -> Iterator[Arguments]:
    """Yield calls of the same sizes with other numbers that the implementation runs."""
    for other in (mirror(arguments), replace(mirror(arguments), params=arguments.params), with_all_digits(arguments)):
        with suppress(CallProblem):
            subject.call(other)
            yield other


def _overwrite(subject: Subject, given: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Write the numbers of other arrays into those of a call; NotCheckable if arrays of the library never change."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            _overwrite(subject, value, other[name])
        elif subject.library.is_array(value) and not subject.library.overwrite(value, other[name]):
            raise NotCheckable(f"{subject.bench.adapter.arrays} arrays never change")


@holds("own-results")
def own_results(subject: Subject) -> None:
    """Require that later calls leave a result as it is; advise that a result has memory of its own.

    A result may be a part of an argument in one call, and a copy in another.
    """
    arguments = read_arguments(find_working_case(subject.component, subject.bench))
    _overwrite(subject, subject.make(arguments), subject.make(arguments))
    _require_lasting(subject, arguments)
    for case in islice(select_plain_cases(subject.component, subject.bench), _MOST_CASES):
        with suppress(CallProblem):
            _require_own_memory(subject, read_arguments(case))


def _require_lasting(subject: Subject, arguments: Arguments) -> None:
    """Raise Violation if a call with other numbers changes what a call returned."""
    returned = subject.run(arguments, subject.make(arguments))
    for _ in islice(_make_others(subject, arguments), 1):
        for name, values in returned.values.items():
            if not _is_equal(subject.library.numpy(returned.arrays[name]), values):
                message = f"a later call changes the {name} that an earlier call returned"
                raise Violation(message, shows="result-overwritten")


def _is_equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=other.dtype.kind == "f")


def _require_own_memory(subject: Subject, arguments: Arguments) -> None:
    """Raise NotAdvised if other numbers in a result change an argument, or the result of a later call."""
    library, bench = subject.library, subject.bench

    def write(array: Any, numbers: Array) -> bool:
        return library.overwrite(array, library.make(numbers, bench.dtype, bench.device))

    given = subject.make(arguments)
    returned = subject.run(arguments, given)
    arrays = {id(array) for array in (*given.values(), *given.get("params", {}).values())}
    # A caller sees that a result is the argument itself, and what cannot be written to is shared without harm.
    own = {name: array for name, array in returned.arrays.items() if id(array) not in arrays}
    written = {}
    try:
        for name, array in own.items():
            values = returned.values[name]
            if write(array, np.asarray(~values if values.dtype.kind == "b" else values + 1)):
                written[name] = array
        changed = _find_changed(subject, given, subject.make(arguments))
        later = subject.run(arguments, subject.make(arguments)).values
        # Not only another result: the numbers that were written come back.
        kept = [n for n in written if _is_equal(later[n], library.numpy(written[n]))]
    finally:
        # What is kept for later calls must be as it was.
        for name, array in written.items():
            write(array, returned.values[name])
    kept = [name for name in kept if not _is_equal(later[name], returned.values[name])]
    if changed or kept:
        what = f"the result shares memory with {changed}" if changed else f"{kept[0]} shares memory with later results"
        raise NotAdvised(f"{what}: a change of one in place changes the other", shows="result-aliases-input")


def _find_changed(subject: Subject, given: Mapping[str, Any], fresh: Mapping[str, Any]) -> str:
    """Return the name of the first argument that is no longer as it was made, or ""."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            if changed := _find_changed(subject, value, fresh[name]):
                return f"{name}.{changed}"
        elif subject.library.is_array(value) and not subject.library.same(value, fresh[name]):
            return name
    return ""


@holds("new-memory")
def new_memory(subject: Subject) -> None:
    """Require that what memory held before it was allocated changes nothing: zeros, NaN or other numbers."""
    with subject.library.fill_empty(0) as filled:
        if not filled:
            raise NotCheckable(f"no memory without values is seen in {subject.bench.adapter.arrays} code")

    arrays: dict[int, Mapping[str, Any]] = {}  # all runs of a call have the same arrays

    def make(arguments: Arguments) -> Run:
        arrays[id(arguments)] = subject.make(arguments)
        return partial(_run_filled, subject, arguments, arrays[id(arguments)], 0.0)

    for plain in _make_plain_calls(subject, make):
        for number, _ in _FILLERS:
            run = partial(_run_filled, subject, plain.arguments, arrays[id(plain.arguments)], number)
            claim = f"memory that is allocated without values and holds {number:g} changes the result"
            subject.require_same(plain, run, claim, "uninitialised")


def _run_filled(subject: Subject, arguments: Arguments, given: Mapping[str, Any], number: float) -> Outputs:
    """Return the outputs of a call in which all memory that is allocated without values holds a number.

    NotCheckable if it fails only then: torch fills memory in a dispatch mode, which a few of its classes do not run in.
    """
    try:
        with subject.library.fill_empty(number):
            return subject.run(arguments, given).outputs
    except BadResult as bad:
        subject.run(arguments, given)
        raise NotCheckable(f"{NOT_RUN} with memory that is filled when it is allocated: {bad}") from bad
