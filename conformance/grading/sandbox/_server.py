"""What runs in the process of one submission, once it is shut in: it imports the adapter and answers calls."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import random
import sys
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from goldformer.adapters.process.messages import error_line
from goldformer.adapters.process.schema import MAX_MESSAGE, PARSE_ERROR, RAISED
from goldformer.adapters.process.server import Server
from goldformer.adapters.protocol import Adapter, AdapterError
from goldformer.conformance.grading.sandbox._mounts import ours
from goldformer.spec import Spec

#: The file that maps what was handed in, and the folder beside it that holds that.
ADAPTER: Final = "adapter.py"
SUBMISSION: Final = "submission"
#: A module of the submission may be called adapter.
_NAME: Final = "__adapter__"
_OURS: Final = (*(f"{folder}/" for folder in ours()), "<frozen importlib", "<string>")
_INSTALLED: Final = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib"))
_BUFFER: Final = 1 << 20


def serve_box(incoming: int, outgoing: int, box: str, spec: Spec) -> None:
    """Say that the process is shut in; then import the adapter for the first request, and answer all of them.

    The first line is read before anything of the submission runs: what that writes comes after a request.
    """
    requests, replies = os.fdopen(incoming, "rb", _BUFFER), os.fdopen(outgoing, "wb", _BUFFER)
    _say(replies, json.dumps({"ready": True}).encode() + b"\n")
    line = requests.readline(MAX_MESSAGE + 1)
    if not line.endswith(b"\n"):
        return
    answer = _answering(box, spec)
    while True:
        reply, ended = answer(line)
        for printed in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # it may be anything by now
                printed.flush()
        _say(replies, reply)
        if ended or not (line := requests.readline(MAX_MESSAGE + 1)).endswith(b"\n"):
            return


def _say(replies: BinaryIO, line: bytes) -> None:
    replies.write(line)
    replies.flush()


def _answering(box: str, spec: Spec) -> Callable[[bytes], tuple[bytes, bool]]:
    """What answers a line: the adapter; or, where that cannot be imported, why."""
    told = _Telling(box)
    try:
        server = Server(_adapter(box, spec), spec, told=told.in_full)
    except AdapterError as error:
        problem, detail = str(error), ""
    except BaseException as error:
        problem, detail = told.of_import(error), told.in_full(error)
    else:
        return lambda line: (server.answer(line), server.ended)
    return lambda line: (_refusal(line, problem, detail), False)


def _refusal(line: bytes, problem: str, detail: str) -> bytes:
    id_ = json.loads(line).get("id")
    return error_line(id_, RAISED if isinstance(id_, int) else PARSE_ERROR, problem, detail)


def _adapter(box: str, spec: Spec) -> Adapter:
    """The adapter of a box; a function of it that no call could reach says so when it is called."""
    sys.path[:0] = [f"{box}/{SUBMISSION}", box]
    random.seed(0)  # which forking had started from somewhere
    path = f"{box}/{ADAPTER}"
    found = importlib.util.spec_from_file_location(_NAME, path)
    assert found is not None  # its name ends in .py
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[_NAME] = module
    found.loader.exec_module(module)
    adapter = Adapter.from_object(module, ADAPTER, spec)
    unreachable = {name: _refusing(f"{name} {why}") for name, why in adapter.broken.items()}
    return dataclasses.replace(adapter, functions={**adapter.functions, **unreachable}, broken={})


def _refusing(why: str) -> Callable[..., Any]:
    def function(**_: Any) -> Any:
        # No TypeError: that is how a function refuses what the spec has refused.
        raise RuntimeError(why)

    return function


class _Telling:
    """Tells an exception in the submission's own terms: no folder of this machine, no frame of ours."""

    def __init__(self, box: str) -> None:
        folders = [f"{box}/{SUBMISSION}", box, *_INSTALLED]
        self._folders = [f"{folder}/" for folder in dict.fromkeys(folders)]
        self._theirs = tuple(self._folders[:2])

    def of_import(self, error: BaseException) -> str:
        """Why the submission cannot be imported, in a line: where, and what."""
        if isinstance(error, SyntaxError) and error.filename:
            where = f"{self._short(error.filename)}:{error.lineno}: "
            return f"{where}{type(error).__name__}: {error.msg}"
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if frame.filename.startswith(self._theirs)), None)
        where = f"{self._short(last.filename)}:{last.lineno}: " if last else ""
        return self._short(f"{where}{type(error).__name__}: {error}")

    def in_full(self, error: BaseException) -> str:
        """The traceback."""
        told = traceback.TracebackException.from_exception(error)
        link: traceback.TracebackException | None = told
        while link is not None:
            ours = [i for i, frame in enumerate(link.stack) if _is_ours(frame.filename)]
            for i in reversed(ours):
                del link.stack[i]
            link = link.__cause__ or link.__context__
        return self._short("".join(told.format()))

    def _short(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(folder, "")
        return text


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS)
