"""goldformer trace: which layer of a port is the first that differs, and why."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from goldformer.adapters.find import load_object, require_arrays
from goldformer.adapters.inference import import_target, split_target
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    PARTIAL,
    CannotRun,
    print_error,
    require_outputs,
    save,
    save_json,
    say,
)

if TYPE_CHECKING:
    from goldformer.conformance.trace.report import Trace

#: The ends of the names of files of arrays.
_ARRAYS: Final = (".npz", ".safetensors")
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _read_layers(_context: click.Context, _parameter: click.Parameter, value: str | None) -> range | None:
    """Return the layers of 0-3, or of 2; both ends are meant."""
    if value is None:
        return None
    first, _, last = value.partition("-")
    if not (first.isdigit() and (last or first).isdigit()):
        raise click.BadParameter(f"{value!r} is no range of layers: write 0-3, or one number")
    return range(int(first), int(last or first) + 1)


@click.command(
    epilog=options.list_statuses(
        ok="the same",
        fails="something differs",
        bad="bad model or option, or two that cannot be compared",
        partial="not decidable in that dtype",
    )
)
@click.argument("mine")
@click.argument("theirs")
@click.option(
    "--inputs",
    metavar="FILE:NAME",
    help="The inputs, a tuple or a function that makes it.  [default: inputs in the file of MINE or THEIRS]",
)
@options.JSON
@click.option("--html", type=options.FILE, help="Save a page with a picture.")
@click.option(
    "--layers", metavar="0-3", callback=_read_layers, help="Look into these layers only, which takes less memory."
)
def trace(
    *, mine: str, theirs: str, inputs: str | None, json: Path | None, html: Path | None, layers: range | None
) -> int:
    """Compare two models, layer by layer.

    MINE and THEIRS are models with the same weights, as port.py:mine and port.py:theirs: an nn.Module, a class or a
    function that makes one without arguments, or a function of the inputs that calls one. They may be files of named
    arrays, .npz or .safetensors, in the order in which they were computed.
    """
    require_outputs({"--json": json, "--html": html}, mine, theirs)
    require_arrays("torch", "goldformer trace")
    from goldformer.conformance.trace.passes import NotComparable  # --help needs no PyTorch

    try:
        found = _trace(mine, theirs, inputs, layers)
    except NotComparable as error:
        raise CannotRun(str(error)) from error
    say(str(found))
    if json is not None:
        save_json(json, found.to_json())
    if html is not None:
        save(html, found.to_html())
    return {"same": OK, "differs": FAILS, "not decidable": PARTIAL}[found.verdict]


def _trace(mine: str, theirs: str, inputs: str | None, layers: range | None) -> Trace:
    """Load what the words name, and compare it."""
    from goldformer.conformance.trace import arrays, models  # --help needs no PyTorch

    if mine.endswith(_ARRAYS) and theirs.endswith(_ARRAYS):
        return arrays.trace_arrays(_load_arrays(mine), _load_arrays(theirs))
    files: dict[str, Any] = {}
    made = [_make(_load(name, files), name) for name in (mine, theirs)]
    named = [inputs] if inputs else [f"{split_target(name)[0]}:inputs" for name in (mine, theirs)]
    given = next((thing for name in named if (thing := _load(name, files, required=bool(inputs))) is not None), None)
    if given is None:
        raise CannotRun(
            "no inputs: define inputs = (ids,) in the file of MINE or THEIRS, or name them by --inputs FILE:NAME"
        )
    given = _call(given, "inputs") if callable(given) else given
    given = given if isinstance(given, (tuple, list)) else (given,)
    return models.trace(*made, *given, layers=layers, tell=print_error)


def _load_arrays(name: str) -> Mapping[str, Any]:
    """Return the arrays of a file."""
    import numpy as np  # --help needs no arrays

    try:
        if name.endswith(".npz"):
            with np.load(name) as arrays:
                return dict(arrays)
        from safetensors.torch import load_file

        return load_file(name)
    except (ImportError, OSError):
        raise
    except Exception as error:  # NumPy's own text speaks of pickles
        raise CannotRun(f"{name} is no file of named arrays: save numbers by numpy.savez or safetensors") from error


def _call(thing: Callable[[], Any], name: str) -> Any:
    try:
        return thing()
    except Exception as error:
        raise CannotRun(f"{name} raises {type(error).__name__}: {error}") from error


def _load(name: str, files: dict[str, Any], *, required: bool = True) -> Any:
    """Return what a name of a file or a module has; each file is imported once. None if it need not have it."""
    place, attribute = split_target(name)
    if not attribute:
        raise CannotRun(f"{name}: name the model in it, as {name}:make_model")
    if place not in files:
        files[place] = import_target(Path(place)).module if place.endswith(".py") else load_object(place)
    thing = getattr(files[place], attribute, None)
    if thing is None and required:
        raise CannotRun(f"{place} has no {attribute}")
    return thing


def _make(thing: Any, name: str) -> Any:
    """Return a model; a class, or a function without arguments, makes one."""
    from torch import nn  # a file of arrays needs no PyTorch

    if isinstance(thing, nn.Module):
        return thing
    if not callable(thing):
        raise CannotRun(f"{name} is {type(thing).__name__}: give an nn.Module, or a function that makes or calls one")
    needs = [
        p for p in inspect.signature(thing).parameters.values() if p.default is p.empty and p.kind not in _VARIADIC
    ]
    if isinstance(thing, type) and needs:
        raise CannotRun(
            f"{name} needs {', '.join(p.name for p in needs)}: write a function that makes it without arguments"
        )
    made = thing if needs else _call(thing, name)
    return made.eval() if isinstance(made, nn.Module) else made
