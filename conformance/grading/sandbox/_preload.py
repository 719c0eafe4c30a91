"""Import what sandboxed processes need before the first fork, and hide the rest of this package from them."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import os
import sys
import threading
from types import ModuleType
from typing import Final

from goldformer.conformance.grading.sandbox._mounts import (
    list_devices,
    list_python_folders,
    list_readable_without_own_package,
)
from goldformer.spec import Spec, load_spec

#: Modules that sandboxed code may need: parts of the standard library that Python imports by itself, or late; and of
#: this package what an adapter may import and what answers its calls. It can import nothing else of this package.
_MODULES: Final = (
    "ast", "bdb", "codecs", "collections.abc", "copy", "dataclasses", "encodings.ascii", "encodings.idna",
    "encodings.latin_1", "encodings.utf_8", "enum", "fractions", "functools", "heapq", "inspect", "itertools",
    "linecache", "locale", "math", "numbers", "operator", "pprint", "random", "re", "shutil", "statistics",
    "string", "subprocess", "tempfile", "textwrap", "threading", "tokenize", "traceback", "types", "typing",
    "unittest", "warnings", "goldformer.adapters.layouts", "goldformer.conformance.grading.sandbox._server",
)  # fmt: skip
_OF_LIBRARIES: Final = {
    "numpy": ("numpy", "numpy.linalg", "numpy.random", "numpy.fft"),
    "torch": (
        "numpy", "numpy.random", "torch", "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.autograd",
        "torch.autograd.functional", "torch.nn.utils", "torch.func",
        # Otherwise the first gradient of every process takes half a second longer.
        "torch.fx.experimental.symbolic_shapes",
    ),
    "jax": ("numpy", "jax", "jax.numpy", "jax.nn"),
}  # fmt: skip


def preload(arrays: str) -> Spec:
    """Import what sandboxed code needs; return the contracts and conventions of the spec, and nothing else of it.

    RuntimeError if a library starts a thread: a fork would not have it, and would wait for it.
    """
    for name in (*_MODULES, *_OF_LIBRARIES[arrays]):
        importlib.import_module(name)
    # Every random generator starts from the same state, so that a second run gives the same numbers.
    sys.modules["numpy"].random.seed(0)
    if arrays == "torch":
        sys.modules["torch"].set_num_threads(1)
        sys.modules["torch"].default_generator.manual_seed(0)
        # It inspects the processor once; without /proc it prints a warning, which must not look like the program's.
        sys.modules["torch"].ones(1).exp()
    if _count_threads() != 1:
        raise RuntimeError(f"{arrays} started threads when it was imported, which a fork does not have")
    for search in (list_readable_without_own_package, list_devices):
        search()  # cached for every fork
    # Keep nothing that reads the other files: sandboxed code could ask it for expected values.
    spec = dataclasses.replace(
        load_spec.__wrapped__(), documents={}, clauses={}, errata={}, mistakes={}, properties={}, cases={}
    )
    _hide_own_modules()
    gc.collect()
    gc.freeze()
    return spec


def _count_threads() -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return threading.active_count()  # only Python's own, which is all that other systems tell


def _hide_own_modules() -> None:
    """Keep the loaded modules and make all others of this package impossible to import, such as the reference."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "goldformer" and hasattr(module, "__path__"):
            module.__path__ = []
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder)]
    folders = tuple(list_python_folders())
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry).startswith(folders)]
    sys.path_importer_cache.clear()
    sys.argv[:] = sys.orig_argv[:] = [""]
    sys.modules["__main__"] = ModuleType("__main__")
