"""Properties of every component that takes arrays."""

from __future__ import annotations

import re
from typing import Final

from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.engine import working_case
from goldformer.conformance.invoke import (
    BadResult,
    NotCheckable,
    NotImplementedHere,
    arguments_of,
    call,
    hand_over,
)
from goldformer.conformance.properties import Subject, Violation, holds

#: How torch says that an operation met tensors of two devices. Anything else that goes wrong on the
#: meta device may be honest: code that looks at its data cannot run where there is none.
MIXED_DEVICES: Final = re.compile(
    r"(same|expected) device|at least two devices|is on cpu|on meta.*on cpu|cpu.*meta", re.IGNORECASE
)


@holds("device-hygiene")
def test_device_hygiene(subject: Subject) -> None:
    """A tensor that was left on the CPU meets the inputs, which are on the meta device, and raises."""
    bench = subject.bench
    if bench.adapter.arrays != "torch":
        raise NotCheckable(f"{bench.adapter.arrays} has no meta device")
    case = working_case(subject.component, bench)
    contract, library = bench.spec.contracts[subject.component], LIBRARIES["torch"]
    given = hand_over(library, contract, arguments_of(case), bench.dtype, "meta")
    try:
        returned, _ = call(bench.adapter, contract, given)
    except (BadResult, NotImplementedHere) as bad:
        if MIXED_DEVICES.search(str(bad.__cause__)):
            raise Violation(f"mixes devices: a tensor is made on the CPU, whatever the inputs are on ({bad})") from bad
        raise NotCheckable(f"cannot run on the meta device: {bad}") from bad
    if not isinstance(returned, dict):
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        returned = dict(zip(contract.outputs, values, strict=False))
    for name, value in returned.items():
        if library.is_array(value) and library.device(value) != "meta":
            raise Violation(f"{name} is on {library.device(value)} though the inputs are elsewhere")


@holds("repeat-calls")
def test_repeat_calls(subject: Subject) -> None:
    """The second call gives what the first gave, up to rounding: nothing random, nothing remembered."""
    case = working_case(subject.component, subject.bench)
    arguments = arguments_of(case)
    first, second = (subject.call(subject.component, arguments) for _ in range(2))
    name = subject.bench.spec.contracts[subject.component].first_output
    bound = subject.bound(subject.component, arguments, name) if first[name].dtype.kind == "f" else 0.0
    subject.agree(name, second[name], first[name], bound, "a second call with the same inputs gives something else")
