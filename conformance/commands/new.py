"""goldformer new: an adapter to start from, written from the contracts themselves."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Final

import click

from goldformer.adapters.skeleton import write_stub
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import OK, CannotRun, expand_patterns, say
from goldformer.spec import load_spec
from goldformer.spec.files import write_named_file

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

#: The component that is written unless some are named.
_FIRST: Final = ("scaled_dot_product_attention",)
_OTHERS: Final = "There are more components (goldformer new another.py --component NAME, or --all, writes their stubs):"


@click.command(epilog=options.list_statuses())
@click.argument("path", type=options.FILE)
@click.option(
    "--arrays",
    type=click.Choice(["torch", "numpy"]),
    default="torch",
    show_default=True,
    help="The array library that you compute with.",
)
@options.COMPONENTS
@click.option("--all", "every", is_flag=True, help="Write every component.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def new(*, path: Path, arrays: str, components: tuple[str, ...], every: bool, force: bool) -> int:
    """Write a commented adapter to start from.

    It has scaled_dot_product_attention, unless --component names others. It can be checked at once: every function in
    it is not implemented yet. For a class of PyTorch, `goldformer infer my_model.py:MyModel --out FILE` writes all of
    its adapter.
    """
    contracts = load_spec().contracts
    components = expand_patterns(components, contracts, "--component")
    if every and components:
        raise CannotRun("--all writes every component: leave out --component, or --all")
    chosen = [name for name in contracts if every or name in (components or _FIRST)]
    if path.exists() and not force:
        raise CannotRun(f"{path} exists: give another name, or --force to overwrite it")
    if path.suffix != ".py":
        raise CannotRun(f"{path}: an adapter is a Python file, so its name ends in .py")
    library = {"torch": "torch tensors", "numpy": "NumPy arrays"}[arrays]
    text = _HEAD.format(name=path.as_posix(), library=library, arrays=arrays, stem=path.stem)
    text += "".join(f"\n\n{write_stub(contracts[name])}" for name in chosen)
    if others := [name for name in contracts if name not in chosen]:
        text += "\n\n" + fill(f"{_OTHERS} {', '.join(others)}", 100, initial_indent="# ", subsequent_indent="# ") + "\n"
    try:
        write_named_file(path, text)
    except OSError as error:
        raise CannotRun(f"{path} cannot be written: {error.strerror}") from error
    say(f"wrote {path}\nnow run: goldformer check {path}")
    return OK
