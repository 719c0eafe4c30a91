"""Find an adapter by its name: a built-in, a file, an installed entry point, a dotted module, or a command."""

from __future__ import annotations

import codecs
import contextlib
import difflib
import importlib
import importlib.machinery
import importlib.util
import shlex
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from goldformer.adapters.find_arrays import add_arrays
from goldformer.adapters.imports import import_again, run_as_program
from goldformer.adapters.notebook import SUFFIX, NotebookError, explain_missing, read_notebook, run_cells
from goldformer.adapters.process import TIMEOUT
from goldformer.adapters.process.faults import CallFault
from goldformer.adapters.protocol import Adapter, AdapterError, Loader, list_other_functions
from goldformer.adapters.untrusted_text import describe_exception, join_lines
from goldformer.extras import install_hint
from goldformer.spec import Spec, load_spec
from goldformer.spec.scope import explain_scope

#: The prefix of a command: an adapter in a process of its own, which speaks the protocol.
COMMAND: Final = "cmd:"

GROUP: Final = "goldformer.adapters"

#: The adapters that come with the project: a module, or an object in one.
BUILT_IN: Final = {
    "reference": "goldformer.adapters.builtin.reference",
    "textbook": "goldformer.adapters.builtin.textbook",
    "torch-nn": "goldformer.adapters.builtin.torch_nn:torch_nn",
    "torch-nn-pre": "goldformer.adapters.builtin.torch_nn:torch_nn_pre",
    "torch-nn-gelu": "goldformer.adapters.builtin.torch_nn:torch_nn_gelu",
    "torch-nn-math": "goldformer.adapters.builtin.torch_nn:torch_nn_math",
    "torch-nn-flash": "goldformer.adapters.builtin.torch_nn:torch_nn_flash",
    "torch-nn-fast-path": "goldformer.adapters.builtin.torch_nn_fast_path",
    "torch-nn-flex": "goldformer.adapters.builtin.torch_nn_flex",
    "torch-nn-sequence-first": "goldformer.adapters.builtin.torch_nn:torch_nn_sequence_first",
}

#: The adapters of other libraries, each an extra of its own.
OF_LIBRARIES: Final = {
    "jax": "goldformer.adapters.libraries.jax_nn",
    "flax": "goldformer.adapters.libraries.flax_nnx",
    "equinox": "goldformer.adapters.libraries.equinox",
    "hugging-face": "goldformer.adapters.libraries.hugging_face",
    "hugging-face-llama": "goldformer.adapters.libraries.hugging_face_decoder_only:llama",
    "hugging-face-mistral": "goldformer.adapters.libraries.hugging_face_decoder_only:mistral",
    "hugging-face-qwen3": "goldformer.adapters.libraries.hugging_face_decoder_only:qwen3",
    "hugging-face-gemma-2": "goldformer.adapters.libraries.hugging_face_decoder_only:gemma_2",
    "hugging-face-parts": "goldformer.adapters.libraries.hugging_face_parts",
    "keras": "goldformer.adapters.libraries.keras",
    "x-transformers": "goldformer.adapters.libraries.x_transformers",
    "onnxruntime": "goldformer.adapters.libraries.onnx_runtime:onnx_runtime",
    "onnx-reference": "goldformer.adapters.libraries.onnx_reference:onnx_reference",
    "tinygrad": "goldformer.adapters.libraries.tinygrad",
}

#: By imported package: the name of the library, and the extra that installs it.
NEEDED: Final = {
    "torch": ("PyTorch", "torch"),
    "jax": ("JAX", "jax"),
    "flax": ("Flax", "flax"),
    "equinox": ("Equinox", "equinox"),
    "transformers": ("Hugging Face transformers", "hugging-face"),
    "keras": ("Keras", "keras"),
    "x_transformers": ("x-transformers", "x-transformers"),
    "onnxruntime": ("ONNX Runtime", "onnxruntime"),
    "onnx": ("ONNX", "onnx"),
    "tinygrad": ("tinygrad", "tinygrad"),
}

#: The bridges to the exercises of a course or a site, each a module with a function `connect`. "cs336:PATH" is the code
#: at a path, called by the bridge cs336.
BRIDGES: Final = {
    "cs336": "goldformer.adapters.bridges.cs336",
    "torchcode": "goldformer.adapters.bridges.torchcode",
}

_OWN: Final = {**BUILT_IN, **OF_LIBRARIES}


def find_adapter(name: str, spec: Spec, timeout: float = TIMEOUT) -> Adapter:
    """Load the adapter of a name; AdapterError says why that fails, and what to write instead.

    `timeout` is the limit in seconds for each call of an adapter in a process of its own.
    """
    return load_with_reload(partial(_find, name, timeout=timeout), name, spec)


def load_with_reload(find: Callable[[Spec], Adapter], name: str, spec: Spec) -> Adapter:
    """Return the adapter that `find` gives for a name; a file or a process can be loaded again, without its state.

    Another process can load what is not itself a process; for that, `find` can be pickled.
    """
    if name.startswith(COMMAND):
        return replace(find(spec), reload=partial(find, spec))
    adapter = replace(find(spec), loader=Loader(find))
    if (folder := find_folder(name)) is None:
        return adapter

    def reload() -> Adapter:
        with import_again(folder):
            return replace(find(spec), loader=Loader(find))

    return replace(adapter, reload=reload)


def _find(name: str, spec: Spec, *, timeout: float) -> Adapter:
    if name.startswith(COMMAND):
        return _find_process(name, spec, timeout)
    thing = load_object(name)
    # A notebook does not declare its arrays.
    return read_object(add_arrays(thing, spec) if name.endswith(SUFFIX) else thing, name, spec)


def read_object(thing: Any, name: str, spec: Spec) -> Adapter:
    """Return the adapter that a loaded module or object declares; AdapterError if it declares none."""
    adapter = Adapter.from_object(thing, name, spec)
    require_arrays(adapter.arrays, name)
    scope = explain_scope(list_other_functions(thing, spec), adapter.functions)
    return replace(adapter, hints=(*adapter.hints, scope)) if scope else adapter


def _find_process(name: str, spec: Spec, timeout: float) -> Adapter:
    """Start a command, ask it what it implements, and return its adapter."""
    from goldformer.adapters.process.client import (  # only adapters in other processes need it
        adapter_object,
        command_client,
    )

    try:
        thing = adapter_object(command_client(name.removeprefix(COMMAND), timeout), spec.contracts)
    except ValueError as error:
        raise AdapterError(f"{name}: {error}") from error
    except CallFault as fault:
        lines = "".join(f"\n    {line}" for line in fault.detail.splitlines())
        stderr = f"\n  Standard error ends with:{lines}" if lines else ""
        refused = "it refused initialize: " if fault.reason == "raised" else ""
        raise AdapterError(f"{name}: {refused}{fault}{stderr}") from fault
    try:
        return replace(Adapter.from_object(thing, name, spec), timeout=timeout)
    except AdapterError:
        thing.CLOSE()
        raise


def load_object(name: str) -> Any:
    """Import the file, module or built-in adapter of a name; AdapterError if it does not exist or fails."""
    if target := _OWN.get(name):
        return _import(name, target)
    if path := split_bridge(name)[1]:
        return _connect(name, path)
    if _is_file(name):
        return import_file(Path(name))
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return _import(name, entry.value)
    module = name.partition(":")[0]
    if "." in module or is_installed(module):
        return _import(name, name)
    installed = [entry.name for entry in entry_points(group=GROUP)]
    names = {**dict(zip(_OWN, _OWN, strict=True)), **{bridge: f"{bridge}:PATH" for bridge in BRIDGES}}
    names |= {entry: entry for entry in installed}
    close = [names[near] for near in difflib.get_close_matches(module, names, n=1)]
    known = ", ".join(names.values())
    guess = f" Did you mean {close[0]}?" if close else ""
    what = 'a file (my_adapter.py), a dotted module, a command ("cmd: …"), or one of'
    raise AdapterError(f"no adapter {name!r}.{guess} Give {what}: {known}")


def split_bridge(name: str) -> tuple[str, str]:
    """Return the bridge and the path of "BRIDGE:PATH"; two empty strings for any other name."""
    bridge, _, path = name.partition(":")
    return (bridge, path) if path and bridge in BRIDGES else ("", "")


def join_bridge(bridge: str, path: str) -> str:
    """Return "BRIDGE:PATH"; AdapterError, with a guess, for a bridge that is unknown."""
    if bridge not in BRIDGES:
        close = difflib.get_close_matches(bridge, BRIDGES, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        raise AdapterError(f"no bridge {bridge!r}.{guess} Give one of: {', '.join(BRIDGES)}")
    return f"{bridge}:{path}"


def _connect(name: str, path: str) -> Any:
    """Return what a bridge makes of the code at a path."""
    sys.path.insert(0, str(find_folder(name)))
    return _import(name, f"{BRIDGES[split_bridge(name)[0]]}:connect")(Path(path))


def find_folder(name: str) -> Path | None:
    """Return the folder whose modules the code of a name imports; None for what is no file."""
    if bridged := split_bridge(name)[1]:
        path = Path(bridged).resolve()
        folder = path if path.is_dir() else path.parent
        # The tests of a solution import the solution from the folder above.
        return folder.parent if folder.name == "tests" else folder
    return Path(name).resolve().parent if _is_file(name) else None


def is_named_adapter(name: str) -> bool:
    """Return True for the name of a built-in or an installed adapter, and for a bridge with a path."""
    if split_bridge(name)[0]:
        return True
    return name in _OWN or (not _is_file(name) and any(entry.name == name for entry in entry_points(group=GROUP)))


def _is_file(name: str) -> bool:
    """Return True if a name is to be the path of a file, whether there is one or not."""
    return name not in _OWN and (name.endswith((".py", SUFFIX)) or "/" in name or "\\" in name or Path(name).is_file())


def is_installed(module: str) -> bool:
    """Return True if a module can be found; packages that hold it are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _import(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        thing: Any = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            thing = getattr(thing, part)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise explain_import_error(name, error) from error
    return thing


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """A loader that compiles a file each time, and writes no bytecode next to it.

    Python uses stored bytecode if the time, in whole seconds, and the size of the file are equal. A digit that is
    changed between two checks in one second would not be judged.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        """Return the code of the file as it is now."""
        del fullname
        return self.source_to_code(self.get_data(self.path), self.path)


def import_file(path: Path) -> Any:
    """Import a Python file, whose folder becomes importable; AdapterError if that fails."""
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
        guess = f" Did you mean {path.with_name(near[0])}?" if near else ""
        raise AdapterError(f"{path}: no such file.{guess} `goldformer new {path}` writes one to start from")
    if path.suffix == SUFFIX:
        return _import_notebook(path)
    module_name = f"goldformer_adapter_{path.stem}"
    loader = _SourceLoader(module_name, str(path)) if path.suffix == ".py" else None
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    if spec is None or spec.loader is None:
        program = shlex.quote(str(path) if path.is_absolute() or len(path.parts) > 1 else f"./{path}")
        raise AdapterError(f'{path}: not a Python file; give one that ends in .py, or a program as "cmd: {program}"')
    # An adapter imports the files next to it: usually the implementation itself.
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        with run_as_program(path):
            spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[module_name]
        raise explain_import_error(str(path), error) from error
    return module


def _import_notebook(path: Path) -> Any:
    # A notebook imports the files next to it, as an adapter does.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        cells = read_notebook(path.read_bytes(), str(path))
    except NotebookError as error:
        raise AdapterError(str(error)) from error
    try:
        with run_as_program(path):
            module = run_cells(cells, str(path))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise AdapterError(explain_missing(str(explain_import_error(str(path), error)), cells, path.stem)) from error
    # The names that its classes use are looked up in it.
    sys.modules[module.__name__] = module
    return module


def require_arrays(arrays: str, name: str) -> None:
    """Raise AdapterError, which says how to install it, if the array library of an adapter is not installed."""
    if arrays in NEEDED and not is_installed(arrays):
        raise _missing_package_error(name, arrays)
    if arrays in NEEDED and (why := explain_hidden(arrays)):
        raise AdapterError(f"{name}: {why}")


def _missing_package_error(name: str, package: str) -> AdapterError:
    library, extra = NEEDED[package]
    return AdapterError(f"{name} needs {library}, which is not installed: {install_hint(extra)}")


def _describe_printed(line: str) -> str:
    """Return the document that prints such a line, which is not valid Python, or ""."""
    return "".join(
        f"\nAs printed in {e.document} ({e.id}); goldformer explain {e.id} says what is right"
        for e in load_spec().errata_quoted_in(line)
    )


def explain_hidden(package: str) -> str:
    """Return which file is imported in the place of an array library, or ""."""
    place = importlib.util.find_spec(package) if is_installed(package) else None
    # Each of these libraries is a folder.
    if place is None or place.origin is None or Path(place.origin).name != f"{package}.py":
        return ""
    return f"{place.origin} is imported in the place of {NEEDED[package][0]}: give this file another name"


def _describe_encoding(name: str) -> str:
    """Return what to do about a file in UTF-16, which an editor marks as that, or ""."""
    with contextlib.suppress(OSError):
        if Path(name).read_bytes().startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return ". The file is in UTF-16: save it in UTF-8"
    return ""


def explain_import_error(name: str, error: BaseException) -> AdapterError:
    """Return the error for a failed import of a file or module; it names the line of it at fault."""
    if isinstance(error, ModuleNotFoundError) and error.name in NEEDED:
        return _missing_package_error(name, error.name)
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}:{error.lineno})" if error.lineno else _describe_encoding(name)
        what = join_lines(f"{error.msg}{where}")
        # An adapter may raise one itself, with anything in it.
        text = error.text if isinstance(error.text, str) else ""
        line = f"\n    {join_lines(text)}{_describe_printed(text)}" if text else ""
        return AdapterError(f"{name} is not valid Python: {what}{line}")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    # The loaders are next to this file, and in folders below.
    theirs = [f for f in frames if Path(__file__).parent not in Path(f.filename).parents]
    # The innermost frame in the adapter's folder is the line at fault; deeper frames are in libraries.
    own = [f for f in theirs if Path(f.filename).parent == Path(theirs[0].filename).parent]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    relative = "relative import with no known parent" in describe_exception(error)
    hint = ". An adapter imports a file next to it by its plain name: `from my_model import …`" if relative else ""
    if isinstance(error, SystemExit):
        hint = '. It ends when it is imported: put what is a program under `if __name__ == "__main__":`'
    hint = "".join(f". {why}" for why in map(explain_hidden, NEEDED & sys.modules.keys()) if why) or hint
    return AdapterError(f"{name} could not be imported: {join_lines(describe_exception(error) + where)}{hint}")
