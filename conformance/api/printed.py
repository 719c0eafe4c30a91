"""Keep the output that checked code prints, for the report: some hundred calls would fill the screen."""

from __future__ import annotations

import contextlib
import io
from types import TracebackType
from typing import Final

#: The number of characters that are kept.
_MOST: Final = 10_000


class Printed(io.TextIOBase):
    """A stream that keeps the first characters that are printed while it is open, and counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._kept = 0
        self._left_out = 0
        self._redirection = contextlib.ExitStack()

    @property
    def text(self) -> str:
        """The printed text, cut at the limit."""
        more = f"\n… {self._left_out} more characters" if self._left_out else ""
        return "".join(self._parts) + more

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str, /) -> int:
        """Keep a text, as far as there is room."""
        kept = text[: _MOST - self._kept]
        self._parts.append(kept)
        self._kept += len(kept)
        self._left_out += len(text) - len(kept)
        return len(text)

    def __enter__(self) -> Printed:
        self._redirection.enter_context(contextlib.redirect_stdout(self))
        self._redirection.enter_context(contextlib.redirect_stderr(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redirection.close()
