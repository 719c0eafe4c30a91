"""Remove the System V objects of a user: shared memory, semaphores and message queues, which outlive processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.sandbox import _linux as linux

#: How to remove an object of each kind of /proc/sysvipc, by its number.
_REMOVERS: Final[Mapping[str, Callable[[int], None]]] = {
    "shm": linux.remove_shared_memory, "sem": linux.remove_semaphores, "msg": linux.remove_message_queue,
}  # fmt: skip


def remove_objects(user: int) -> None:
    """Remove the objects that a user made, as far as the system shows them."""
    for kind, remove in _REMOVERS.items():
        with contextlib.suppress(OSError):
            names, *lines = Path(f"/proc/sysvipc/{kind}").read_text(encoding="ascii").splitlines()
            columns = names.split()
            for line in lines:
                found = dict(zip(columns, line.split(), strict=False))
                if int(found["cuid"]) == user:
                    with contextlib.suppress(OSError):  # somebody else has removed it
                        remove(int(found[columns[1]]))
