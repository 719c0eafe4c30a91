"""What is imported before anything is forked, and what can be found by what is forked."""

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

from goldformer.conformance.grading.sandbox._mounts import devices, interpreter, readable_but_ours
from goldformer.spec import Spec, load_spec

#: What submissions may come to need: parts of the standard library that Python imports by itself, or late; and of
#: this package what an adapter may import and what answers its calls. All else of this package is out of their reach.
_LATE: Final = (
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
        # Half a second that every submission's first gradient would take.
        "torch.fx.experimental.symbolic_shapes",
    ),
    "jax": ("numpy", "jax", "jax.numpy", "jax.nn"),
}  # fmt: skip

LIBRARIES: Final = tuple(_OF_LIBRARIES)


def prepared(arrays: str) -> Spec:
    """Import what submissions need; return the contracts and conventions of the spec, and nothing else of it.

    RuntimeError when a library starts a thread: a fork would not have it, and would wait for it.
    """
    for name in (*_LATE, *_OF_LIBRARIES[arrays]):
        importlib.import_module(name)
    # Every generator of random numbers starts from the same place, that a submission is graded twice alike.
    sys.modules["numpy"].random.seed(0)
    if arrays == "torch":
        sys.modules["torch"].set_num_threads(1)
        sys.modules["torch"].default_generator.manual_seed(0)
        # It looks at the processor once; where there is no /proc it complains, as if the submission had.
        sys.modules["torch"].ones(1).exp()
    if _threads() != 1:
        raise RuntimeError(f"{arrays} started threads when it was imported, which a fork does not have")
    for looked_up in (readable_but_ours, devices):
        looked_up()  # and kept for every fork
    # Nothing that reads the other files may stay: a submission could ask it what is expected.
    spec = dataclasses.replace(
        load_spec.__wrapped__(), documents={}, clauses={}, errata={}, mistakes={}, properties={}, cases={}
    )
    _forget_ours()
    gc.collect()
    gc.freeze()
    return spec


def _threads() -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return threading.active_count()  # Python's own: all that other systems tell


def _forget_ours() -> None:
    """Keep the modules that are there and find no others of ours: not the reference, nor what is expected."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "goldformer" and hasattr(module, "__path__"):
            module.__path__ = []
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder)]
    folders = tuple(interpreter())
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry).startswith(folders)]
    sys.path_importer_cache.clear()
    sys.argv[:] = sys.orig_argv[:] = [""]
    sys.modules["__main__"] = ModuleType("__main__")
