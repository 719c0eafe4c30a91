"""Records which outputs an implementation returns: those of an assignment's solution are required of submissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Final

from goldformer.adapters import Adapter
from goldformer.conformance.judging.invoke import BadResult, name_outputs
from goldformer.spec import Contract, Spec

#: The names of outputs, by component and check.
Outputs = Mapping[str, Mapping[str, tuple[str, ...]]]

#: No output but the first is required.
OPTIONAL: Final[Outputs] = {}


class OutputRecorder:
    """Records the outputs that each check gets from an adapter, except the first, which every call must return."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._calls: list[tuple[str, frozenset[str]]] = []
        self._found: dict[str, dict[str, frozenset[str]]] = {}

    def watch(self, adapter: Adapter) -> Adapter:
        """Return the adapter with functions that record what they return."""
        contracts = self._spec.contracts
        functions = {name: self._record(function, contracts[name]) for name, function in adapter.functions.items()}
        return replace(adapter, functions=functions)

    def _record(self, function: Callable[..., Any], contract: Contract) -> Callable[..., Any]:
        @wraps(function)  # the signature decides about the arguments of a call
        def record(*given: Any, **named: Any) -> Any:
            returned = function(*given, **named)
            try:
                names = frozenset(name_outputs(returned, contract)) - {contract.first_output}
            except BadResult:
                names = frozenset()
            self._calls.append((contract.component, names))
            return returned

        return record

    def file(self, component: str, check: str) -> None:
        """Attribute the calls since the last one to a check: it keeps the outputs that every call of it returned."""
        calls = [names for called, names in self._calls if called == component]
        self.discard()
        if calls:
            checks = self._found.setdefault(component, {})
            # A check runs in several dtypes.
            checks[check] = frozenset.intersection(*calls, checks.get(check, calls[0]))

    def discard(self) -> None:
        """Forget the calls since the last check."""
        self._calls.clear()

    def outputs(self) -> Outputs:
        """Return what was recorded, in the order of the contracts, without checks that got only the first output."""
        named = {
            component: {
                check: tuple(name for name in self._spec.contracts[component].outputs if name in names)
                for check, names in checks.items()
                if names
            }
            for component, checks in self._found.items()
        }
        return {component: checks for component, checks in named.items() if checks}


def summarize(outputs: Outputs, spec: Spec) -> str:
    """Return one line that names the outputs of each component, or an empty one if none but the first is returned."""
    texts = []
    for component, checks in outputs.items():
        contract = spec.contracts[component]
        returned = {name for names in checks.values() for name in names} | {contract.first_output}
        texts.append(f"{component} ({', '.join(name for name in contract.outputs if name in returned)})")
    return ", ".join(texts)
