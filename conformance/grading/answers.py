"""Record what an implementation answers: what an assignment's solution answers is required of submissions.

What the solution declines is asked of nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from typing import Any, Final

import numpy as np

from goldformer.adapters import Adapter
from goldformer.adapters.dtypes import WireArray
from goldformer.conformance.judging.invoke import BadResult, name_outputs
from goldformer.spec import Contract, Spec

#: The names of outputs, by component and check.
Outputs = Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of an assignment's solution.

    `outputs` are those that it returned, except the first of each component, which every call must return. `declined`
    are digests of the calls for which it raised NotImplementedError, by component; None if no solution was run.
    `left_out` are the checks that it declined, by component: no submission is asked for them.
    """

    outputs: Outputs = field(default_factory=dict)
    declined: Mapping[str, tuple[str, ...]] | None = None
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Any) -> Answers:
        """Read the plain data of as_json; KeyError, TypeError or AttributeError if they are damaged."""
        outputs = {
            component: {check: tuple(names) for check, names in checks.items()}
            for component, checks in stored["outputs"].items()
        }
        declined = stored["declined"]
        if declined is not None:
            declined = {component: tuple(digests) for component, digests in declined.items()}
        left_out = {component: tuple(checks) for component, checks in stored["left_out"].items()}
        return cls(outputs, declined, left_out)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """The digest of all of them."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()

    def requires(self, component: str, call: str) -> bool:
        """Return True if the solution answers a call, so that a submission may not decline it."""
        return self.declined is not None and call not in self.declined.get(component, ())

    def leaves_out(self, component: str, check: str) -> bool:
        """Return True if the solution declines a check, so that nobody is asked for it."""
        return check in self.left_out.get(component, ())


#: Without a solution, no output but the first is required, and any call may be declined.
NOTHING_REQUIRED: Final = Answers()


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a component: the outputs that it returned, or its digest and the message if it was declined."""

    component: str
    outputs: frozenset[str] = frozenset()
    declined: str = ""
    message: str = ""


class AnswerRecorder:
    """Records which calls an adapter declines, and the outputs that each check gets from it."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._calls: list[_Call] = []
        self._found: dict[str, dict[str, frozenset[str]]] = {}
        self._declined: dict[str, set[str]] = {}

    def watch(self, adapter: Adapter) -> Adapter:
        """Return the adapter with functions that record what they answer."""

        def record_all(
            functions: Mapping[str, Callable[..., Any]], *, gradients: bool
        ) -> dict[str, Callable[..., Any]]:
            contracts = self._spec.contracts
            return {name: self._record(f, contracts[name], gradients=gradients) for name, f in functions.items()}

        return replace(
            adapter,
            functions=record_all(adapter.functions, gradients=False),
            gradients=record_all(adapter.gradients, gradients=True),
        )

    def _record(self, function: Callable[..., Any], contract: Contract, *, gradients: bool) -> Callable[..., Any]:
        @wraps(function)  # the signature decides about the arguments of a call
        def record(*given: Any, **named: Any) -> Any:
            try:
                returned = function(*given, **named)
            except NotImplementedError as error:
                digest = _digest_call(named)
                self._calls.append(_Call(contract.component, declined=digest, message=str(error)))
                self._declined.setdefault(contract.component, set()).add(digest)
                raise
            if not gradients:
                self._calls.append(_Call(contract.component, _name_optional_outputs(returned, contract)))
            return returned

        return record

    def find_decline(self, required: Answers) -> str | None:
        """Return the message of the first call since the last check that was declined and is required, or None."""
        declined = (call for call in self._calls if call.declined)
        return next((call.message for call in declined if required.requires(call.component, call.declined)), None)

    def file(self, component: str, check: str) -> None:
        """Attribute the calls since the last one to a check: it keeps the outputs that every call of it returned."""
        calls = [call.outputs for call in self._calls if call.component == component and not call.declined]
        self.discard()
        if calls:
            checks = self._found.setdefault(component, {})
            # A check runs in several dtypes.
            checks[check] = frozenset.intersection(*calls, checks.get(check, calls[0]))

    def discard(self) -> None:
        """Forget the calls since the last check."""
        self._calls.clear()

    def answers(self) -> Answers:
        """Return what was recorded: outputs in the order of the contracts, without checks that got only the first."""
        named = {
            component: {
                check: tuple(name for name in self._spec.contracts[component].outputs if name in names)
                for check, names in checks.items()
                if names
            }
            for component, checks in self._found.items()
        }
        outputs = {component: checks for component, checks in named.items() if checks}
        return Answers(outputs, {component: tuple(sorted(self._declined[component])) for component in self._declined})


def _name_optional_outputs(returned: Any, contract: Contract) -> frozenset[str]:
    try:
        return frozenset(name_outputs(returned, contract)) - {contract.first_output}
    except BadResult:
        return frozenset()


def _digest_call(arguments: Mapping[str, Any]) -> str:
    """Return the digest of the arguments of a call, except the numbers of its floats.

    A call may be made with the results of an earlier one, which are rounded differently in each submission.
    """
    return hashlib.sha256("\n".join(sorted(_describe_arguments(arguments))).encode()).hexdigest()


def _describe_arguments(arguments: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            yield from _describe_arguments(value, f"{prefix}{name}.")
            continue
        # A tensor whose gradient is asked for must be detached before NumPy takes it.
        plain = value.detach() if hasattr(value, "detach") else value
        array = np.asarray(plain.values if isinstance(plain, WireArray) else plain)
        numbers = "" if array.dtype.kind == "f" else array.tolist()
        yield f"{prefix}{name}: {array.dtype} {array.shape} {numbers}"


def summarize(outputs: Outputs, spec: Spec) -> str:
    """Return one line that names the outputs of each component in the order of the spec, however they are stored.

    It is empty if none but the first output is returned.
    """
    texts = []
    for component in (name for name in spec.components if name in outputs):
        contract = spec.contracts[component]
        returned = {name for names in outputs[component].values() for name in names} | {contract.first_output}
        texts.append(f"{component} ({', '.join(name for name in contract.outputs if name in returned)})")
    return ", ".join(texts)
