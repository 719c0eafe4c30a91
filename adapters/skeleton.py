"""Write the text of an adapter's functions from the contracts: a stub to fill in, and the shortest one that works."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from goldformer.adapters.protocol import TO_BE_WRITTEN
from goldformer.spec import Contract
from goldformer.spec.model import ArraySpec
from goldformer.spec.sessions import STATE

#: The most parameters that are taken apart in an example.
_FEW: Final = 4


def sign(contract: Contract) -> str:
    """Return how a component is called.

    Without dropout_rate and the like: a call with an optional attribute that a function does not take is "not
    implemented", and one that it takes and ignores fails.
    """
    inputs = [f"{name}=None" if spec.optional else name for name, spec in contract.inputs.items()]
    inputs += [f"{name}=None" for name in _list_state(contract)]
    keywords = [*_list_attributes(contract), *(["params"] if contract.takes_params else [])]
    return f"{contract.component}({', '.join([*inputs, *(['*'] if keywords else []), *keywords])})"


def write_stub(contract: Contract) -> str:
    """Return a function to fill in, whose docstring has the kinds and shapes of all arrays."""
    lines = [f'    """{contract.title}.', ""]
    lines += [f"    {_describe(spec)}" for spec in contract.inputs.values()]
    lines += [f'    params["{spec.name}"]{_describe(spec).removeprefix(spec.name)}' for spec in _list_params(contract)]
    lines += [f"    {name}: what an earlier call returned, or None" for name in _list_state(contract)]
    outputs = [f"{spec.name} {spec.shape}" for spec in contract.outputs.values()]
    returned = [*outputs, *(f"{name}, which a later call is given" for name in _list_state(contract))]
    lines += [f"    Returns {', '.join(returned)}.", '    """']
    body = "\n".join(lines)
    message = f'"{contract.component}: {TO_BE_WRITTEN}"'
    return f"def {sign(contract)}:\n{body}\n    raise NotImplementedError({message})\n"


def write_example(contract: Contract) -> str:
    """Return the shortest adapter of a component, which calls a function of the reader's own."""
    params = [f'params["{name}"]' for name in contract.params]
    if contract.layers or len(params) > _FEW:
        params = ["params"]
    given = [*contract.inputs, *_list_state(contract), *_list_attributes(contract), *params]
    call = f"return my_{contract.component}({', '.join(given)})"
    return f'ARRAYS = "torch"  # or "numpy", "jax"\n\n\ndef {sign(contract)}:\n    {call}\n'


def _list_attributes(contract: Contract) -> list[str]:
    known = contract.names_of_call
    return [name for name, spec in contract.attributes.items() if not spec.optional and name in known]


def _list_state(contract: Contract) -> list[str]:
    """Return the argument that carries the state, where a component has one."""
    return [] if contract.session is None else [STATE]


def _list_params(contract: Contract) -> list[ArraySpec]:
    """Return its parameters; those of a stack once, for layer i."""
    inner = [replace(s, name=f"{k.prefix}.i.{s.name}") for k in contract.layers for s in k.params.values()]
    return [*contract.params.values(), *(replace(s, name=s.name.replace(".i.", ".{i}.")) for s in inner)]


def _describe(spec: ArraySpec) -> str:
    optional = (
        ", or None"
        if spec.optional and spec.broadcast
        else ", may be absent"
        if spec.optional or spec.only_with
        else ""
    )
    broadcast = "broadcasts to " if spec.broadcast else ""
    return f"{spec.name}: {spec.kind} {broadcast}{spec.shape}{optional}"
