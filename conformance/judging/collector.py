"""The garbage collector while an implementation is judged and its failures are explained."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NEVER: Final = 1 << 30


@contextmanager
def sparing_collector() -> Iterator[None]:
    """Let the garbage collector look only at young objects inside the context.

    A spec is hundreds of thousands of objects that stay. To search all of them takes a tenth of a second, and Python
    does it again and again while millions of others come and go.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
