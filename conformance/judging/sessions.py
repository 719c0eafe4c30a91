"""Sessions: the calls of one case in their order, each given the state that an earlier one returned.

The state is opaque: whatever a call returns as its state is handed to later calls unread. So it may be an object in
this process and a number in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from goldformer.spec import Contract
from goldformer.spec.model import ArraySpec, Attribute
from goldformer.spec.sessions import AFTER, STATE, SessionCall, read_script
from goldformer.spec.shapes import Binder

Place = tuple[int, ...]


class SessionResults(dict[str, Any]):
    """The results of the calls of a session, by names such as "output of call 2"."""


def name_call(call: SessionCall) -> str:
    """Return the name of a call in the arguments of a session, in its results and in messages."""
    return f"call {call.number}"


def run_session(given: Mapping[str, Any], run: Callable[[str, dict[str, Any]], dict[str, Any]]) -> SessionResults:
    """Make all calls of a session in their order.

    `given` has the arguments of each call by its name, and the number of the call that it follows under AFTER. `run`
    makes one call and returns its results by name, with the state.
    """
    states: list[Any] = [None]
    results = SessionResults()
    for name, arguments in given.items():
        plain = {key: value for key, value in arguments.items() if key != AFTER}
        returned = run(name, {**plain, STATE: states[arguments[AFTER]]})
        states.append(returned.pop(STATE))
        results |= {f"{output} of {name}": value for output, value in returned.items()}
    return results


def list_parts(
    contract: Contract, attributes: Mapping[str, Attribute], binder: Binder
) -> Iterator[tuple[str, ArraySpec, Binder]]:
    """Yield what each call of a session may return: the output, its specification by its own name, and its sizes."""
    assert contract.session is not None, f"{contract.component} is called once"
    for call in read_script(attributes):
        sizes = Binder({**binder.sizes, contract.session.axis: call.stop - call.start}, binder.lead)
        for output, spec in contract.outputs.items():
            yield output, spec.rename(f"{output} of {name_call(call)}"), sizes


def describe_calls(
    contract: Contract, attributes: Mapping[str, Attribute], output: str, places: Collection[Place]
) -> str:
    """Return which calls of a session gave some elements of an output, as words to add to a sentence, or ""."""
    session, spec = contract.session, contract.outputs.get(output)
    if session is None or spec is None:
        return ""
    found = {session.find_call(place, spec.shape, attributes) for place in places}
    numbers = sorted(call.number for call in found if call is not None)
    if not numbers:
        return ""
    plural = "s" if len(numbers) > 1 else ""
    return f", in call{plural} {', '.join(map(str, numbers))} of {len(read_script(attributes))}"
