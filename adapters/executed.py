"""Note which lines of the user's files run while golden cases call them, and the arguments of their functions.

Of all code only that outside Python, its libraries and goldformer is followed. From Python 3.12 on, `sys.monitoring`
reports each line once. Before, `sys.settrace` reports each line that runs; a debugger or a measurement of coverage uses
it too and goes first: then nothing is noted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Final

from goldformer.adapters.imports import is_own_file

#: The value of an argument that was an array or another object at least once, and of one that had several values.
OBJECTS: Final = "an object"
SEVERAL: Final = "several"

#: The types of arguments that hold no data: sizes, switches, places.
_PLAIN: Final = frozenset({"NoneType", "bool", "int", "float", "str", "device", "dtype", "Size"})


@dataclass
class Use:
    """The use of a function: for which components, with which arguments, and twice on one object in one call.

    The value of an argument is its representation if it was the same in every call, else SEVERAL or OBJECTS.
    """

    components: set[str] = field(default_factory=set)
    arguments: dict[str, str] = field(default_factory=dict)
    is_repeated: bool = False

    def note(self, name: str, value: str) -> None:
        """Note a value of an argument."""
        known = self.arguments.get(name, value)
        self.arguments[name] = value if known == value else OBJECTS if OBJECTS in (known, value) else SEVERAL


@dataclass
class Executed:
    """The lines that ran by file, and the functions that were entered by file and first line."""

    lines: dict[str, set[int]] = field(default_factory=dict)
    functions: dict[tuple[str, int], Use] = field(default_factory=dict)


class Recorder:
    """Notes what runs in the calls of a component that it follows, while it monitors."""

    def __init__(self) -> None:
        self.executed = Executed()
        #: The component that is called now.
        self.component = ""
        #: By id: code, which is kept so that no other code gets its id, its use, and the arguments that are noted.
        self._functions: dict[int, tuple[CodeType, Use, list[str]]] = {}
        self._objects: set[tuple[int, int]] = set()

    @contextmanager
    def follow(self, component: str) -> Iterator[None]:
        """Note what runs inside the context."""
        self.component = component
        self._objects.clear()
        traces = sys.version_info < (3, 12) and sys.gettrace() is None
        if traces:
            sys.settrace(self._trace_call)
        try:
            yield
        finally:
            if traces:
                sys.settrace(None)
            self.component = ""

    def enter(self, code: CodeType, frame: FrameType) -> bool:
        """Note that a function starts; return True if it is the first time."""
        is_first = id(code) not in self._functions
        if is_first:
            names = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]
            use = self.executed.functions.setdefault((code.co_filename, code.co_firstlineno), Use())
            self._functions[id(code)] = (code, use, names)
        _, use, names = self._functions[id(code)]
        use.components.add(self.component)
        if "self" in code.co_varnames[:1] and not use.is_repeated:
            known = (id(code), id(frame.f_locals.get("self")))
            use.is_repeated = known in self._objects
            self._objects.add(known)
        values = frame.f_locals if names else {}
        for name in [name for name in names if name in values]:
            use.note(name, _describe(values[name]))
            if use.arguments[name] == OBJECTS:
                names.remove(name)
        return is_first

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002 - sys.settrace passes both
        """Return the function that follows the lines of a frame, or None."""
        file = frame.f_code.co_filename
        if not is_own_file(file):
            return None
        self.enter(frame.f_code, frame)
        ran = self.executed.lines.setdefault(file, set())

        def trace(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001 - as above
            if event == "line":
                ran.add(frame.f_lineno)
            return trace

        return trace

    @contextmanager
    def monitor(self) -> Iterator[None]:
        """Follow code from Python 3.12 on; the start of a function that is not followed is reported once."""
        # 3 and 4 belong to no kind of tool: a debugger and a measurement of coverage keep theirs.
        free = [tool for tool in (3, 4) if sys.version_info >= (3, 12) and sys.monitoring.get_tool(tool) is None]
        if sys.version_info >= (3, 12) and free:
            monitoring, events, tool = sys.monitoring, sys.monitoring.events, free[0]

            def start(code: CodeType, _: int) -> Any:
                if not is_own_file(code.co_filename):
                    return monitoring.DISABLE
                if self.component and self.enter(code, sys._getframe(1)):
                    monitoring.set_local_events(tool, code, events.LINE)
                return None

            def run_line(code: CodeType, line: int) -> Any:
                if self.component:
                    self.executed.lines.setdefault(code.co_filename, set()).add(line)
                return monitoring.DISABLE if self.component else None

            monitoring.use_tool_id(tool, "goldformer")
            monitoring.register_callback(tool, events.PY_START, start)
            monitoring.register_callback(tool, events.LINE, run_line)
            monitoring.set_events(tool, events.PY_START)
            monitoring.restart_events()
            try:
                yield
            finally:
                monitoring.set_events(tool, 0)
                monitoring.free_tool_id(tool)
        else:
            yield


def _describe(value: Any) -> str:
    if isinstance(value, list | tuple) and value and all(one is None for one in value):
        return repr(None)
    return repr(value) if type(value).__name__ in _PLAIN else OBJECTS
