"""The gradients of one call: by the adapter's own backward function, or by automatic differentiation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from goldformer.adapters.arrays import LIBRARIES, ArrayLibrary
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.untrusted_text import describe_exception
from goldformer.conformance.judging.invoke import (
    Arguments,
    Array,
    BadResult,
    CallProblem,
    NotImplementedHere,
    Result,
    call,
    convert_arguments,
    name_outputs,
    read_array,
    run_in_host,
)
from goldformer.spec import Contract
from goldformer.spec.model import ArraySpec
from goldformer.spec.ways import PLAIN, Way

#: What keeps gradients from an argument, in words.
_CUTS: Final = "(detach, .data, a copy, no_grad)"


def invoke_gradient(
    adapter: Adapter,
    contract: Contract,
    arguments: Arguments,
    cotangent: Array,
    wanted: Mapping[str, ArraySpec],
    dtype: str,
    device: str,
    way: Way = PLAIN,
) -> Result:
    """Return the gradients of Σ cotangent·(first output) by the arguments in `wanted`, or raise CallProblem."""
    invocation = partial(
        _invoke_gradient, contract=contract, arguments=arguments, cotangent=cotangent, wanted=wanted, dtype=dtype,
        device=device, way=way,
    )  # fmt: skip
    result: Result = run_in_host(invocation, contract.component, adapter, device)
    return result


def _invoke_gradient(
    adapter: Adapter,
    contract: Contract,
    arguments: Arguments,
    cotangent: Array,
    wanted: Mapping[str, ArraySpec],
    dtype: str,
    device: str,
    way: Way,
) -> Result:
    by_hand = contract.component not in adapter.differentiated
    binder = arguments.bind(contract)
    library = LIBRARIES[adapter.arrays]
    given, moved = (
        convert_arguments(library, contract, arguments, dtype, device),
        library.make(cotangent, dtype, device),
    )
    start = time.perf_counter()
    if own := adapter.gradients.get(contract.component):
        backward = replace(adapter, functions={contract.component: own}, broken={})
        returned, _ = call(backward, contract, {**given, "cotangent": library.lay_out(moved, way.cotangent)})
        if not isinstance(returned, Mapping):
            what = f"{contract.component}_gradient returned a {type(returned).__name__}"
            raise BadResult("not-an-array", f"{what}: return a mapping of argument name to gradient")
        gradients = dict(returned)
    elif adapter.forward_only:
        raise NotImplementedHere("the adapter declares GRADIENTS = False: it has no backward pass")
    else:
        gradients, by_hand = _differentiate(adapter, library, contract, given, moved, way)
        if wanted and not gradients:
            advice = "If it has no backward pass, as a kernel may, declare GRADIENTS = False"
            raise BadResult("no-gradient", f"the result has no graph {_CUTS}. {advice}")
    seconds = time.perf_counter() - start
    if missing := [name for name in wanted if name not in gradients]:
        why = f"it is never used, or the graph is cut {_CUTS}"
        message = f"no gradient reaches {', '.join(missing)}: {why}"
        raise BadResult("no-gradient", message, unreached=missing)
    read = {
        name: read_array(library, spec.rename(f"the gradient of {name}"), gradients[name], binder, dtype, device)
        for name, spec in wanted.items()
    }
    return Result(read, seconds, by_hand)


def _differentiate(
    adapter: Adapter, library: ArrayLibrary, contract: Contract, given: Mapping[str, Any], cotangent: Any, way: Way
) -> tuple[dict[str, Any], bool]:
    """Return the gradients by automatic differentiation, and True if a part of the backward pass is written by hand."""
    params: Mapping[str, Any] = given.get("params", {})
    floats = {n for n, s in contract.inputs.items() if s.kind == "float"}
    leaves = {n: a for n, a in given.items() if n in floats} | dict(params)

    by_hand = False

    def run(tracked: Mapping[str, Any]) -> Any:
        nonlocal by_hand
        inner = {n: tracked.get(n, a) for n, a in given.items()}
        if params:
            inner["params"] = {n: tracked.get(n, a) for n, a in params.items()}
        returned, _ = call(adapter, contract, inner)
        output = name_outputs(returned, contract)[contract.first_output]
        by_hand = library.has_own_backward(output)
        if way.cotangent != "contiguous" and output.requires_grad:
            output.register_hook(lambda gradient: library.lay_out(gradient, way.cotangent))
        return output

    gradients: Any = {}
    try:
        # Autograd notes in a tensor that it requires a gradient: those of each half are new ones, of the same memory.
        halves = ({name: leaves[name].detach() for name in [*leaves][start::2]} for start in (0, 1))
        for some in halves if way.splits else (leaves,):
            found = library.differentiate(run, some, cotangent)
            gradients = None if found is None else {**gradients, **found}
    except CallProblem:
        raise
    except Exception as error:  # a backward pass of the implementation may raise anything
        raise BadResult("raised", f"backward raised {describe_exception(error)}", error) from error
    if gradients is None:
        what = f"{library.name} does not differentiate by itself: provide {contract.component}_gradient"
        raise NotImplementedHere(what)
    return gradients, by_hand
