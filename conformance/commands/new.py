"""goldformer new: an adapter to start from, written from the contracts themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from goldformer.adapters.protocol import TO_BE_WRITTEN
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import OK, CannotRun, say
from goldformer.spec import Contract, load_spec
from goldformer.spec.files import replace_file
from goldformer.spec.model import ArraySpec

_HEAD = '''"""Adapter: tells goldformer how to call your implementation.

Fill in what you have and delete what you do not: an absent function is "not implemented", nothing worse.
Run it:            goldformer check {name}
In pytest:         pytest --pyargs goldformer.conformance --adapter {name}
What is a clause:  goldformer explain SDPA-2

Arrays arrive as {library}, batch first, and in the dtype under test; return the same dtype. y = x·W + b,
so weights are (in, out): transpose them for nn.Linear. Masks are boolean, True = may attend.
Return the first output, a tuple in the order given, or a dict by name; the other outputs are optional.
goldformer.adapters.layouts converts the usual other layouts.
"""

ARRAYS = "{arrays}"
NAME = "{stem}"
# Where your code makes another choice than the documents, declare it (goldformer explain empty_row):
# CONVENTIONS = {{"empty_row": "nan", "odd_d_model": "refused"}}
# DTYPES = ("float64", "float32")
'''


@click.command(epilog=options.STATUSES)
@click.argument("path", type=options.FILE)
@click.option(
    "--arrays",
    type=click.Choice(["torch", "numpy"]),
    default="torch",
    show_default=True,
    help="The array library that you compute with.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def new(*, path: Path, arrays: str, force: bool) -> int:
    """Write a commented adapter to start from.

    It can be checked at once: every function in it is not implemented yet.
    """
    contracts = load_spec().contracts
    if path.exists() and not force:
        raise CannotRun(f"{path} exists: give another name, or --force to overwrite it")
    if path.suffix != ".py":
        raise CannotRun(f"{path}: an adapter is a Python file, so its name ends in .py")
    library = {"torch": "torch tensors", "numpy": "NumPy arrays"}[arrays]
    text = _HEAD.format(name=path.as_posix(), library=library, arrays=arrays, stem=path.stem)
    try:
        replace_file(path, text + "".join(_write_function(c) for c in contracts.values()))
    except OSError as error:
        raise CannotRun(f"{path} cannot be written: {error.strerror}") from error
    say(f"wrote {path}\nnow run: goldformer check {path}")
    return OK


def _write_function(contract: Contract) -> str:
    inputs = [f"{n}=None" if spec.optional else n for n, spec in contract.inputs.items()]
    # Without dropout_rate and the like: a call with an optional attribute that a function does not take is "not
    # implemented", and one that it takes and ignores fails.
    keywords = [n for n, spec in contract.attributes.items() if not spec.optional]
    keywords += ["params"] if contract.takes_params else []
    arguments = ", ".join([*inputs, *(["*"] if keywords else []), *keywords])
    lines = [f'    """{contract.title}.', ""]
    lines += [f"    {_describe(spec)}" for spec in contract.inputs.values()]
    lines += [f'    params["{spec.name}"]{_describe(spec).removeprefix(spec.name)}' for spec in _params(contract)]
    outputs = ", ".join(f"{spec.name} {spec.shape}" for spec in contract.outputs.values())
    lines += [f"    Returns {outputs}.", '    """']
    body = "\n".join(lines)
    message = f'"{contract.component}: {TO_BE_WRITTEN}"'
    return f"\n\ndef {contract.component}({arguments}):\n{body}\n    raise NotImplementedError({message})\n"


def _params(contract: Contract) -> list[ArraySpec]:
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
