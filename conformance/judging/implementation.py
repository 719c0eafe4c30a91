"""An implementation under test: calls it, and says what it has and what it declares."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.process.patience import NOT_ASKED
from goldformer.adapters.protocol import Adapter, find_declaration
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import (
    Arguments,
    BadResult,
    BaseFails,
    CallProblem,
    NotImplementedHere,
    Outcome,
    Result,
    call,
    convert_arguments,
    describe_missing,
    invoke,
    read_arguments,
    run_in_host,
)
from goldformer.conformance.judging.verdict import UNANSWERED, Reason
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.model import REFUSED
from goldformer.spec.ways import PLAIN, Way


@dataclass(frozen=True, slots=True)
class Implementation:
    """An adapter in one dtype on one device.

    `wrapper` is the transformation that the functions pass through, `wrapped` the adapter of those that did.
    """

    spec: Spec
    adapter: Adapter
    dtype: str
    device: str
    wrapper: str = field(default="", kw_only=True)
    wrapped: Adapter | None = field(default=None, kw_only=True)

    @property
    def computes_on_cpu(self) -> bool:
        """True if the processor does the arithmetic: on the CPU itself, and on the pretend device."""
        return self.device.partition(":")[0] in ("cpu", "pretend")

    def has(self, component: str) -> bool:
        """Return True if the adapter has a component, or its gradient."""
        return component in self.adapter.functions or component in self.adapter.gradients

    def explain_unusable(self, component: str = "") -> tuple[Reason, str] | None:
        """Return the reason why nothing can run here, or nothing of a component, or None."""
        own = self.adapter.own_dtypes
        name, works_in = (component, own[component]) if component in own else (self.adapter.name, self.adapter.dtypes)
        if self.dtype not in works_in:
            return ("dtype", f"{name} works in {', '.join(works_in)}, not in {self.dtype}")
        kind, adapter = self.device.partition(":")[0], self.adapter
        if not (adapter.is_device_agnostic if kind == "pretend" else kind in adapter.devices):
            return ("device", f"{adapter.name} works on {', '.join(adapter.devices)}, not on {self.device}")
        library = LIBRARIES[self.adapter.arrays]
        if why := library.unavailable(self.device):
            return "device", why
        why = library.explain_missing_dtype(self.device, self.dtype)
        return ("dtype", why) if why else None

    def explain_missing(self, component: str, *, gradient: bool = False) -> str:
        """Return the message if the adapter has no such function, or "": without one no arguments need be made."""
        if component in self.adapter.functions or (gradient and component in self.adapter.gradients):
            return ""
        return describe_missing(self.adapter, component)

    def options(self, case: Case) -> dict[str, str]:
        """Return the adapter's option for each convention that a case depends on or asks for."""
        of_component = self.adapter.options(case.component, self.spec)
        return of_component | {
            name: self.adapter.convention(name, case.component, self.spec)
            for name in case.only_with
            if name not in of_component
        }

    def find_permission(self, case: Case, outcome: Outcome | None) -> str:
        """Return the undeclared convention of a case with an option that permits its call to raise, or "" if none."""
        if not (isinstance(outcome, BadResult) and outcome.reason == "raised" and case.error is None):
            return ""
        named = (*case.conventions, *case.only_with)
        refusable = (name for name in named if REFUSED in self.spec.conventions[name].options)
        declared = self.adapter.conventions
        return next((n for n in refusable if find_declaration(declared, n, case.component) is None), "")

    def call(self, component: str, arguments: Arguments, *, check_inputs: bool = True, way: Way = PLAIN) -> Result:
        """Call a component of the implementation; CallProblem when there is nothing to compare."""
        contract = self.spec.contracts[component]
        return invoke(self.adapter, contract, arguments, self.dtype, self.device, check_inputs=check_inputs, way=way)

    def call_case(
        self,
        case: Case,
        arguments: Arguments | None = None,
        base: tuple[str, Arguments] | None = None,
        way: Way = PLAIN,
    ) -> Outcome:
        """Make the call of a case; return its outputs, the gradients of its arguments, or the problem.

        `arguments` are those of the case, if they have been read already. An error case has to raise and returns no
        outputs then; `base` is the id and the arguments of the same call without the fault, which has to work.
        """
        contract = self.spec.contracts[case.component]
        try:
            if case.error is not None:
                return self._call_bad_input(case, arguments, base)
            arguments = arguments or read_arguments(case, as_given=True)
            if case.cotangent_array is None:
                # Skip the check for changed inputs on full-size models, where it takes seconds: smaller cases cover it.
                return self.call(case.component, arguments, check_inputs=not case.full_size, way=way)
            return invoke_gradient(
                self.adapter, contract, arguments, case.cotangent_array, contract.results_of(case), self.dtype,
                self.device, way=way,
            )  # fmt: skip
        except CallProblem as problem:
            return problem

    def _call_bad_input(self, case: Case, arguments: Arguments | None, base: tuple[str, Arguments] | None) -> Outcome:
        seconds = 0.0
        if base is not None:
            try:
                seconds = self.call(case.component, base[1]).seconds
            except BadResult as bad:
                what = f"cannot be judged: {base[0]}, the same call without the fault, fails: {bad}"
                return BaseFails(bad.reason, str(bad) if str(bad).startswith(NOT_ASKED) else what, bad.detail)
        returned, refusal = self.call_unchecked(case, arguments)
        if refusal is None:
            message = f"accepts a bad {case.error} and returns {returned}: raise an error that names the argument"
            return BadResult("no-error", message)
        refuses = isinstance(refusal, BadResult) and refusal.reason not in ("wrong-parameters", *UNANSWERED)
        return Result({}, seconds) if refuses else refusal

    def call_unchecked(
        self, case: Case, arguments: Arguments | None = None
    ) -> tuple[str, NotImplementedHere | BadResult | None]:
        """Call a case without checking the contract; return the result in words, and the problem."""
        unchecked = partial(
            _call_unchecked, contract=self.spec.contracts[case.component], arguments=arguments or read_arguments(case),
            dtype=self.dtype, device=self.device,
        )  # fmt: skip
        try:
            return run_in_host(unchecked, case.component, self.adapter, self.device), None
        except (NotImplementedHere, BadResult) as problem:
            return "", problem


def _call_unchecked(adapter: Adapter, *, contract: Contract, arguments: Arguments, dtype: str, device: str) -> str:
    given = convert_arguments(LIBRARIES[adapter.arrays], contract, arguments, dtype, device)
    return _describe_returned(call(adapter, contract, given)[0])


def _describe_returned(returned: Any) -> str:
    first = returned[0] if isinstance(returned, tuple) and returned else returned
    shape = getattr(first, "shape", None)
    return f"an array of shape {tuple(shape)}" if shape is not None else type(first).__name__
