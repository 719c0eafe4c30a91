"""Worker processes that never outlive the process that started them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait


def make_pool(jobs: int) -> ProcessPoolExecutor:
    """Return a pool of `jobs` new processes; each ends when this process ends, however that happens."""
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_watch_parent)


def _watch_parent() -> None:
    """End this process soon after its parent: a killed parent cannot tell it to end, and it would wait for ever."""
    threading.Thread(target=_end_with_parent, name="watch the parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "only a worker process has a pool's initializer"
    wait([parent.sentinel])
    os._exit(1)
