"""The check of a call by its contract, before the formula runs: formulas check nothing themselves."""

from collections.abc import Mapping
from functools import wraps
from inspect import signature
from typing import Any

from goldformer.spec.call import check_call
from goldformer.spec.formulas.steps import Step, step
from goldformer.spec.load import load_spec
from goldformer.spec.model import Contract
from goldformer.spec.sessions import CALLS, STATE


def check_first(component: str, formula: Step) -> Step:
    """Return the formula of a component, which refuses a call that contradicts its contract."""
    names = tuple(signature(formula).parameters)

    @wraps(formula)
    def run(*args: Any, **named: Any) -> Any:
        check_arguments(component, {**dict(zip(names, args, strict=False)), **named})
        return formula(*args, **named)

    return run


@step
def check_arguments(component: str, arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a call; ContractViolation names those that contradict the contract."""
    contract = load_spec().contracts[component]
    given = {name: value for name, value in arguments.items() if value is not None}
    params = given.pop("params", {})
    given = _make_script(contract, given)
    inputs = {name: given.pop(name) for name in contract.inputs if name in given}
    check_call(contract, inputs, params, given)


def _make_script(contract: Contract, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of one call of a session as a script of this call alone; others as they are."""
    if (session := contract.session) is None:
        return given
    # Rows of the calls before are known to the state alone.
    known = {STATE, *(session.so_far if STATE in given else ())}
    kept = {name: value for name, value in given.items() if name not in known}
    axes = ((kept[name].shape, session.find_axis(spec.shape)) for name, spec in contract.inputs.items() if name in kept)
    rows = next((shape[axis] for shape, axis in axes if axis is not None and len(shape) >= -axis), 0)
    return {**kept, CALLS: (rows,)}
