"""Keep the output that checked code prints, for the report: some hundred calls would fill the screen."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Final

#: The number of characters that are kept.
_MOST: Final = 10_000


class Printed(io.StringIO):
    """A stream that keeps the first characters that are printed, and counts the others."""

    _left_out = 0

    @property
    def text(self) -> str:
        """The printed text, cut at the limit."""
        return self.getvalue() + (f"\n… {self._left_out} more characters" if self._left_out else "")

    def write(self, text: str, /) -> int:
        """Keep a text, as far as there is room."""
        kept = text[: _MOST - self.tell()]
        self._left_out += len(text) - super().write(kept)
        return len(text)


@contextmanager
def keep_printed() -> Iterator[Printed]:
    """Keep what is printed inside."""
    printed = Printed()
    with redirect_stdout(printed), redirect_stderr(printed):
        yield printed
