"""The call of a violated property that is wrong, written as a case: to check by itself, and to keep.

Two calls that a property compares would agree if both were right. Evaluating the formulas with the perturbations that
measure error scales finds the wrong one: the formulas are far more exact than any mistake.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np

from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.comparator import compare
from goldformer.conformance.judging.invoke import Arguments, Array
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.spec import Property, Spec
from goldformer.spec.draw import Dyadic, Mask, build
from goldformer.spec.oracle import duals
from goldformer.spec.oracle.derive import GAPS, Outputs, evaluate
from goldformer.spec.oracle.draws import ROUNDOFF, Draw, error_scale
from goldformer.spec.oracle.write import number

_WIDTH: Final = 108

#: The number added to the seed of an example for the arrays that are to differ from its own.
OTHER_SEEDS: Final = (0, 1, 1000)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a property and what it gave: outputs, or gradients for a `cotangent`."""

    component: str
    arguments: Arguments
    outputs: Mapping[str, Array]
    cotangent: Array | None = None


@dataclass(frozen=True, slots=True)
class CaseHead:
    """The beginning of a file of one case; `claim` is a comment above it."""

    id: str
    title: str
    clauses: Sequence[str]
    claim: str


def write_case(prop: Property, claim: str, calls: Sequence[RecordedCall], seed: int, bench: Bench) -> str:
    """Write the wrong call with the shortest text as a file of one case; "" if no call is wrong or chance decides.

    `seed` is the seed that the property drew; the seeds of its other arrays follow from it.
    """
    head = CaseHead(f"found-by-{prop.id}", prop.title, prop.clauses, f"{prop.id}: {claim}")
    files = [write_call(head, call, seed, bench) for call in calls if _is_wrong(call, bench)]
    return min(files, key=lambda text: (text.count("\n"), len(text)), default="")


def _is_wrong(call: RecordedCall, bench: Bench) -> bool:
    """Return True if a call and the formulas differ by more than rounding."""
    attributes = call.arguments.attributes
    if "seed" in attributes and attributes.get("training", True):
        return False
    at_least = bench.spec.contracts[call.component].computed_in_at_least
    options = bench.adapter.options(call.component, bench.spec)
    for name, drawn in evaluate_call(call, options, bench.spec).items():
        if name == GAPS or name not in call.outputs:
            continue
        truth, bound = drawn, 0.0
        if drawn.dtype.kind == "O":
            truth = np.array([np.mean(d.samples) for d in drawn.ravel()]).reshape(drawn.shape)
            scale = error_scale(drawn, truth.ravel())
            bound = tolerance(bench.dtype, scale, float(np.abs(truth).max()), at_least) + ROUNDOFF * scale
        if compare(name, call.outputs[name], truth, bound).wrong:
            return True
    return False


def evaluate_call(call: RecordedCall, options: Mapping[str, str], spec: Spec) -> Outputs:
    """Evaluate the formulas for a call, or their gradients, with a perturbation at every operation."""
    inputs, params = call.arguments.inputs, call.arguments.params
    given = (inputs, params, call.arguments.attributes, options)
    Draw.reset()
    if call.cotangent is None:
        return evaluate(call.component, Draw.exact, Draw.read, *given)
    return duals.gradients(
        lambda number, element: evaluate(
            call.component, number, element, *given, lambda value: duals.Dual(Draw.read(value))
        ),
        {name: array for name, array in {**inputs, **params}.items() if array.dtype.kind == "f"},
        np.asarray(np.frompyfunc(Draw.read, 1, 1)(call.cotangent)),
        spec.contracts[call.component].first_output,
        Draw.exact, Draw.read, duals.unit_draw,
    )  # fmt: skip


def write_call(head: CaseHead, call: RecordedCall, seed: int, bench: Bench) -> str:
    """Write a call as a file of one case, which `goldformer check --cases` reads."""
    return "\n".join(_write_lines(head, call, seed, bench))


def _write_lines(head: CaseHead, call: RecordedCall, seed: int, bench: Bench) -> Iterator[str]:
    """Yield the lines of a file that `goldformer check --cases` reads."""
    arguments, contract = call.arguments, bench.spec.contracts[call.component]
    bound = arguments.bind(contract)
    sizes = {**({"lead": bound.lead} if bound.lead else {}), **bound.sizes}
    yield from textwrap.wrap(head.claim, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    yield f"component: {call.component}"
    yield "cases:"
    yield f"  - id: {head.id}"
    yield f"    title: {json.dumps(head.title, ensure_ascii=False)}"
    yield f"    clauses: {_write_flow(head.clauses)}"
    yield "    source: derived"
    yield from _wrap_line("    sizes: ", sizes)
    lengths = [size for size in (*(bound.lead or ()), *bound.sizes.values()) if size > 1]
    if len(set(lengths)) < len(lengths):
        yield "    equal_sizes: as drawn"
    yield from _wrap_line("    attributes: ", arguments.attributes)
    if arguments.inputs:
        yield "    inputs:"
    for name, array in arguments.inputs.items():
        yield from _wrap_line(f"      {name}: ", _describe_array(name, array, "inputs", seed))
    specs = contract.params_under(arguments.attributes, bench.adapter.options(call.component, bench.spec))
    optional = {name: spec.optional for name, spec in specs.items()}
    yield from _write_params(arguments.params, optional, seed)
    if call.cotangent is not None:
        yield from _wrap_line("    cotangent: ", {"values": call.cotangent.tolist()})
    yield from _wrap_line("    only_with: ", bench.adapter.options(call.component, bench.spec))
    yield from _wrap_line("    expect: ", dict.fromkeys(call.outputs, "all"))


def _write_params(params: Mapping[str, Array], optional: Mapping[str, bool], seed: int) -> Iterator[str]:
    """Yield the lines of the parameters: one for those drawn together, with those changed since under `but`."""
    recipes = {name: _describe_array(name, array, "params", seed) for name, array in params.items()}
    together = next((recipe for recipe in recipes.values() if "draw" in recipe), None)
    needed = {name for name in optional if not optional[name]}
    if together is None or recipes.keys() not in (optional.keys(), needed):
        if recipes:
            yield "    params:"
        for name, recipe in recipes.items():
            yield from _wrap_line(f"      {name}: ", recipe)
        return
    but = {name: recipe for name, recipe in recipes.items() if recipe != together}
    biases = {} if recipes.keys() == optional.keys() else {"biases": False}
    yield from _wrap_line("    params: ", {**together, **biases, **({"but": but} if but else {})})


def make_recipe(group: str, seed: int, shape: tuple[int, ...]) -> Dyadic:
    """Return the recipe by which a property draws an array of the group inputs or params."""
    reach = Fraction({"inputs": 2, "params": 1}[group])
    return Dyadic(seed, -reach, reach, Fraction(1, 64), shape)


def _describe_array(name: str, array: Array, group: str, seed: int) -> dict[str, Any]:
    """Return an array's recipe if it is as it was drawn, or else its numbers."""
    if array.dtype.kind == "b":
        return _describe_mask(array) or {"values": array.tolist()}
    for drawn in (make_recipe(group, seed + more, array.shape) for more in OTHER_SEEDS if array.dtype.kind == "f"):
        if np.array_equal(build(drawn, name), array):
            ends = [int(drawn.lo), int(drawn.hi)]
            return {"draw": "dyadic", "seed": drawn.seed, "range": ends, "step": str(drawn.step)}
    if array.dtype.kind == "f" and array.size > 1 and np.all(array == array.flat[0]):
        return {"fill": float(array.flat[0])}
    return {"values": array.tolist()}


def _describe_mask(array: Array) -> dict[str, Any] | None:
    """Return a mask as a causal one or by its lengths; None if neither describes all of it."""
    if array.ndim < 2:
        return None
    lengths = tuple(array.reshape(len(array), -1, array.shape[-1])[:, 0].sum(-1).tolist())
    if np.array_equal(build(Mask(None, causal=True, shape=array.shape), "mask"), array):
        return {"causal": True, "shape": array.shape}
    if np.array_equal(build(Mask(lengths, causal=False, shape=array.shape), "mask"), array):
        return {"lengths": lengths, "shape": array.shape}
    return None


def _wrap_line(head: str, value: Mapping[str, Any]) -> list[str]:
    """Wrap one key and its value into lines; no line if the value is empty."""
    if not value:
        return []
    # No line ends between a key and what belongs to it.
    text = (head + _write_flow(value)).replace(": ", ":\N{NO-BREAK SPACE}")
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    lines = textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _write_flow(value: Any) -> str:
    """Write plain data in YAML's flow style."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_write_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_write_flow, value)) + "]"
    if isinstance(value, (bool, str)):
        return str(value).lower() if isinstance(value, bool) else value
    return number(repr(value))
