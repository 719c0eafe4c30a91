"""Run inside a sandboxed process: import the adapter and answer calls."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import dis
import importlib.util
import json
import os
import random
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

from goldformer.adapters.process.messages import MAX_MESSAGE, PARSE_ERROR, RAISED
from goldformer.adapters.process.server import Server
from goldformer.adapters.process.wire import error_line
from goldformer.adapters.protocol import Adapter, AdapterError
from goldformer.adapters.untrusted_text import (
    LONGEST_MESSAGE,
    LONGEST_TRACE,
    clip_text,
    describe_exception,
    quote_message,
)
from goldformer.conformance.grading.sandbox._mounts import list_own_folders
from goldformer.spec import Spec

#: The adapter, and the folder next to it that holds the code that it calls.
ADAPTER: Final = "adapter.py"
SUBMISSION: Final = "submission"
#: Not "adapter": a module of the submission may have that name.
_NAME: Final = "__adapter__"
_OWN: Final = (*(f"{folder}/" for folder in list_own_folders()), "<frozen importlib", "<string>")
_INSTALLED: Final = (
    *(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")),
    *(entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")),
)
_BUFFER: Final = 1 << 20
#: The message of a file with a null byte: a SyntaxError, or a ValueError in older versions, which names no file.
_NULL_BYTES: Final = "source code string cannot contain null bytes"
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def serve_calls(incoming: int, outgoing: int, code: str, spec: Spec) -> None:
    """Report that the process is isolated; then import the adapter for the first request, and answer every request.

    The first line is read before any code of the submission runs, so that everything it writes follows a request.
    """
    requests, replies = os.fdopen(incoming, "rb", _BUFFER), os.fdopen(outgoing, "wb", _BUFFER)
    _send(replies, json.dumps({"ready": True}).encode() + b"\n")
    line = requests.readline(MAX_MESSAGE + 1)
    if not line.endswith(b"\n"):
        return
    answer = _make_answerer(code, spec)
    while True:
        reply, ended = answer(line)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the submission may have replaced it by anything
                stream.flush()
        _send(replies, reply)
        if ended or not (line := requests.readline(MAX_MESSAGE + 1)).endswith(b"\n"):
            return


def _send(replies: BinaryIO, line: bytes) -> None:
    replies.write(line)
    replies.flush()


def _make_answerer(code: str, spec: Spec) -> Callable[[bytes], tuple[bytes, bool]]:
    """Return the function that answers a line: by the adapter, or with the reason why it cannot be imported."""
    describer = _ErrorDescriber(code)
    try:
        server = Server(_import_adapter(code, spec), spec, format_error=describer.format_traceback)
    except AdapterError as error:
        problem, detail = str(error), ""
    except BaseException as error:
        problem, detail = describer.describe_import(error), describer.format_traceback(error)
    else:
        return lambda line: (_answer(line, server, describer), server.ended)

    def refuse(line: bytes) -> tuple[bytes, bool]:
        id_ = json.loads(line).get("id")
        return error_line(id_, RAISED if isinstance(id_, int) else PARSE_ERROR, problem, detail), False

    return refuse


def _answer(line: bytes, server: Server, describer: _ErrorDescriber) -> bytes:
    try:
        return server.answer(line)
    except BaseException as error:  # such as a GeneratorExit, which is no answer; the author reads why the process ends
        with contextlib.suppress(BaseException):
            print(describer.format_traceback(error), end="", file=sys.stderr)
        raise SystemExit(1) from None


def _import_adapter(code: str, spec: Spec) -> Adapter:
    """Import the adapter; a function of it that no call could reach says so when it is called."""
    sys.path[:0] = [f"{code}/{SUBMISSION}", code]
    random.seed(0)  # forking had seeded it differently
    module_spec = importlib.util.spec_from_file_location(_NAME, f"{code}/{ADAPTER}")
    assert module_spec is not None  # its name ends in .py
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[_NAME] = module
    module_spec.loader.exec_module(module)
    adapter = Adapter.from_object(module, ADAPTER, spec)
    unreachable = {name: _make_refusal(f"{name} {why}") for name, why in adapter.broken.items()}
    return dataclasses.replace(adapter, functions={**adapter.functions, **unreachable}, broken={})


def _make_refusal(why: str) -> Callable[..., Any]:
    def function(**_: Any) -> Any:
        # Not a TypeError: with that, a function refuses what the spec refuses.
        raise RuntimeError(why)

    return function


def _ends_in_import(trace: TracebackType | None) -> bool:
    """Return True if the innermost frame is at an import, so that no line of the imported module has run."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "IMPORT_NAME"


class _ErrorDescriber:
    """Describes exceptions in the submission's own terms: no folder of this machine, no frame of this package."""

    def __init__(self, code: str) -> None:
        folders = [f"{code}/{SUBMISSION}", code, *_INSTALLED]
        self._folders = [f"{folder}/" for folder in dict.fromkeys(folders)]
        self._own = tuple(self._folders[:2])

    def describe_import(self, error: BaseException) -> str:
        """Return in one line why the submission cannot be imported, and where."""
        if quote_message(error).startswith(_NULL_BYTES) and (problem := self._find_null_byte()):
            return problem
        if isinstance(error, SyntaxError) and error.filename:
            where = f"{self._shorten(error.filename)}:{error.lineno}: "
            return clip_text(f"{where}{type(error).__name__}: {error.msg}", LONGEST_MESSAGE)
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if frame.filename.startswith(self._own)), None)
        where = f"{self._shorten(last.filename)}:{last.lineno}: " if last else ""
        if isinstance(error, (RecursionError, MemoryError)) and _ends_in_import(error.__traceback__):
            # Python says that its stack is full, or its memory, and removes the frames of its compiler. Its parser says
            # MemoryError of both.
            what = "too long or nested too deeply" if isinstance(error, MemoryError) else "nested too deeply"
            return f"{where}what is imported here is {what} for Python ({type(error).__name__})"
        if isinstance(error, ModuleNotFoundError) and quote_message(error) == f"No module named {error.name!r}":
            return f"{where}needs {error.name}, which the grading machine does not have"
        return self._shorten(f"{where}{describe_exception(error)}")

    def _find_null_byte(self) -> str:
        """Say which file of the submission holds a null byte, as every letter has one in UTF-16; "" if none does."""
        for path in sorted(Path(self._own[0]).rglob("*.py")):
            data = path.read_bytes()
            if b"\0" in data:
                name, line = self._shorten(str(path)), data.partition(b"\0")[0].count(b"\n") + 1
                if data.startswith(_UTF_16) or data.count(b"\0") > len(data) // 3:
                    return f"{name}: is saved as UTF-16: save it as UTF-8 (in an editor of Windows: Save as, Encoding)"
                return f"{name}:{line}: contains a null byte: delete it, and save as UTF-8"
        return ""

    def format_traceback(self, error: BaseException) -> str:
        """Return the traceback without the frames of this package."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
            trace = trace.tb_next  # its lines of source would be looked up before they are left out
        text = traceback.TracebackException(type(error), error, trace)
        link: traceback.TracebackException | None = text
        while link is not None:
            for i in reversed([i for i, frame in enumerate(link.stack) if frame.filename.startswith(_OWN)]):
                del link.stack[i]
            link = link.__cause__ or link.__context__
        # A line of source that is no Python is quoted whole.
        return self._shorten(clip_text("".join(text.format()), LONGEST_TRACE))

    def _shorten(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(folder, "")
        return text
