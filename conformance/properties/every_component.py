"""Properties of every component that takes arrays: its devices, and calls that are repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.judging.applicability import find_working_case, select_plain_cases
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.invoke import (
    NOT_RUN,
    Arguments,
    BadResult,
    CallProblem,
    NotCheckable,
    NotImplementedHere,
    call,
    convert_arguments,
    read_arguments,
    run_in_host,
)
from goldformer.conformance.judging.mixed_devices import find_mixed_devices
from goldformer.conformance.judging.verdict import NONDETERMINISM
from goldformer.conformance.properties.hidden_nan import find_inputs_that_leak
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import MixesDevices, Subject, Violation, with_inputs
from goldformer.spec import Case, Contract

#: The number of repeated calls: a race is lost now and then, and a counter may run out later.
_REPEATED: Final = 19

#: The numbers of threads on which a call is repeated.
_THREADS: Final = (2, 4)


@holds("device-hygiene")
def device_hygiene(subject: Subject) -> None:
    """Require that every tensor is made on the device of the inputs.

    A GPU refuses mixtures itself, so that a run there makes these calls there. Where a run is on the CPU, the inputs
    are on the pretend device, on which every operation on them and a tensor of the CPU raises. PyTorch may refuse that
    device; then they are on the meta device, on which some operations raise and no values can be read.
    """
    bench = subject.bench
    if bench.adapter.arrays != "torch":
        raise NotCheckable(f"{bench.adapter.arrays} has neither a pretend nor a meta device")
    device = bench.device if not bench.computes_on_cpu else _choose_simulated_device(bench)
    stopped = []
    for case in _select_variants(subject):
        try:
            _check_devices(case, bench, device)
        except NotCheckable as reason:
            stopped.append(reason)
    if stopped:
        raise stopped[0]


def _choose_simulated_device(bench: Bench) -> str:
    """Return the device that stands for a GPU; NotCheckable for code that must not be called there."""
    if not bench.adapter.is_device_agnostic:
        raise NotCheckable(f"it runs only on {', '.join(bench.adapter.devices)}, as DEVICES declares")
    from goldformer.adapters import pretend_device  # imports torch, which code without it need not have

    return "meta" if pretend_device.register() else pretend_device.NAME


def _select_variants(subject: Subject) -> Iterator[Case]:
    """Yield the first case that the implementation runs, and then the first with each other set of arguments."""
    first = find_working_case(subject.component, subject.bench)
    yield first
    seen = {_name_arguments(first)}
    for case in select_plain_cases(subject.component, subject.bench):
        if _name_arguments(case) in seen:
            continue
        seen.add(_name_arguments(case))
        with suppress(CallProblem):
            subject.bench.call(subject.component, read_arguments(case), check_inputs=False)
            yield case


def _name_arguments(case: Case) -> frozenset[str]:
    return frozenset((*case.inputs, *case.attributes))


def _check_devices(case: Case, bench: Bench, device: str) -> None:
    """Raise MixesDevices if the call of a case mixes devices, or returns a result that is not on `device`."""
    find = partial(
        _find_mixture, contract=bench.spec.contracts[case.component], arguments=read_arguments(case),
        dtype=bench.dtype, device=device, is_simulated=bench.computes_on_cpu,
    )  # fmt: skip
    try:
        mixture: str = run_in_host(find, case.component, bench.adapter, bench.device)
    except BadResult as lost:
        if bench.requires_gpu:
            raise
        raise NotCheckable(f"{NOT_RUN} on the {device} device: {lost}") from lost
    if mixture:
        raise MixesDevices(mixture)


def _find_mixture(
    adapter: Adapter, *, contract: Contract, arguments: Arguments, dtype: str, device: str, is_simulated: bool
) -> str:
    """Return how a call mixes devices, or which result is not on `device`; "" if all is there."""
    from goldformer.adapters import pretend_device

    library = LIBRARIES["torch"]
    if is_simulated:
        pretend_device.register()  # this may be a fresh process
    # Saves a second in each process. On a GPU the call is made as any other.
    direct = pretend_device.DirectDispatch() if is_simulated else nullcontext()
    try:
        with direct:
            returned, _ = call(adapter, contract, convert_arguments(library, contract, arguments, dtype, device))
    except (BadResult, NotImplementedHere) as bad:
        if mixed := find_mixed_devices(str(bad.__cause__)):
            return f"mixes devices: {mixed.words} is on the CPU, although the inputs are not ({bad})"
        raise NotCheckable(f"{NOT_RUN} on the {device} device: {bad}") from bad
    if not isinstance(returned, dict):
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        returned = dict(zip(contract.outputs, values, strict=False))
    for name, value in returned.items():
        if library.is_array(value) and library.device(value) != device.partition(":")[0]:
            return f"{name} is on {library.device(value)} though the inputs are on {device}"
    return ""


@holds("repeat-calls")
def repeat_calls(subject: Subject) -> None:
    """Require that every further call with the same arrays gives what the first gave, up to rounding."""
    arguments = read_arguments(find_working_case(subject.component, subject.bench))
    given = subject.make(arguments)
    first = subject.run(arguments, given).outputs
    claim = "{} with the same inputs gives something else"
    with subject.library.keep_busy(subject.bench.device):
        for number in range(_REPEATED):
            again = subject.run(arguments, given).outputs
            subject.repeats(
                arguments, again, first, claim.format("a second call" if number == 0 else f"call {number + 2}")
            )
    if subject.bench.policy.bitwise:
        _compare_threads(subject, arguments)


def _compare_threads(subject: Subject, arguments: Arguments) -> None:
    """Require that calls on several threads give what a call on one gives; they wait for each other, and take long."""
    library = LIBRARIES[subject.bench.adapter.arrays]
    with library.limit_threads(1) as limited:
        first = subject.call(arguments)
    for threads in _THREADS if limited else ():
        with library.limit_threads(threads):
            again = subject.call(arguments)
        subject.repeats(arguments, again, first, f"a call on {threads} threads gives something else", "threads")


@holds("no-memory")
def no_memory(subject: Subject) -> None:
    """Require that a call gives what it gave before, whatever calls with other inputs were made since."""
    arguments = read_arguments(find_working_case(subject.component, subject.bench))
    first = subject.call(arguments)
    for other in _make_other_calls(subject, arguments):
        with suppress(CallProblem):
            subject.call(other)
    claim = "a call gives something else after calls with other inputs"
    try:
        subject.repeats(arguments, subject.call(arguments), first, claim)
    except Violation as violation:
        again = subject.call(arguments)
        with suppress(Violation):
            subject.repeats(arguments, again, first, claim)
            violation.shows = NONDETERMINISM  # what other calls left would still be there
        raise
    # After the comparison: what such a call leaves is no failure.
    subject.hidden_nan = find_inputs_that_leak(subject)


def _make_other_calls(subject: Subject, arguments: Arguments) -> Iterator[Arguments]:
    """Yield calls unlike one: its mirror image, a case of other sizes, and the call with each mask it does not have."""
    contract = subject.bench.spec.contracts[subject.component]
    binder = arguments.bind(contract)
    yield replace(arguments, inputs={name: np.flip(array) for name, array in arguments.inputs.items()})
    cases = select_plain_cases(subject.component, subject.bench)
    yield from islice((a for a in map(read_arguments, cases) if _shapes(a) != _shapes(arguments)), 1)
    masks = {n: s for n, s in contract.inputs.items() if s.kind == "bool" and n not in arguments.inputs}
    for name, mask in masks.items():
        seen = np.zeros(mask.shape.sizes(binder.sizes, binder.lead or ()), dtype=bool)
        seen[..., 0] = True
        yield with_inputs(arguments, **{name: seen})


def _shapes(arguments: Arguments) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arguments.inputs.items()}
