"""Landlock: what the kernel lets a process open, from now on and for good, whatever file system it sees.

The system calls are documented in landlock(7); which rights there are depends on the version that the kernel has.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from typing import Final

from goldformer.conformance.grading.sandbox._linux import system_call

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
#: Which Python has on Linux alone.
_O_PATH: Final = 0o10000000
_VERSION: Final = 1
_PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_MAKE_CHAR: Final = 1 << 6
_MAKE_BLOCK: Final = 1 << 11
#: How many rights over files there are from each version on.
_RIGHTS: Final[Mapping[int, int]] = {1: 13, 2: 14, 3: 15, 5: 16}
#: Of a file, not of a folder.
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
_NETWORK: Final = 0b11
_SCOPES: Final = 0b11
_FIRST_WITH_NETWORK: Final = 4
_FIRST_WITH_SCOPES: Final = 6

READ: Final = EXECUTE | READ_FILE | READ_DIR
LIST: Final = READ_DIR


def version() -> int:
    """The version of the kernel; OSError when it has none."""
    return system_call("landlock", _CREATE_RULESET, None, 0, _VERSION)


def everything() -> int:
    """All rights over files that the kernel knows, but making devices."""
    known = version()
    count = max(bits for first, bits in _RIGHTS.items() if first <= known)
    return ((1 << count) - 1) & ~(_MAKE_CHAR | _MAKE_BLOCK)


def restrict(allowed: Iterable[tuple[str, int]]) -> None:
    """Allow this process these rights below these paths, and no others; no TCP, and no signals to the outside.

    What the kernel's version does not know of that is not in force. It must have forbidden itself new privileges.
    """
    known = version()
    files = everything() | _MAKE_CHAR | _MAKE_BLOCK
    network = _NETWORK if known >= _FIRST_WITH_NETWORK else 0
    scopes = _SCOPES if known >= _FIRST_WITH_SCOPES else 0
    # An older kernel takes a longer structure as long as what it does not know is zero.
    attributes = (ctypes.c_uint64 * 3)(files, network, scopes)
    rules = system_call("landlock_create_ruleset", _CREATE_RULESET, attributes, ctypes.sizeof(attributes), 0)
    try:
        for path, rights in allowed:
            _allow(rules, path, rights & files)
        system_call("landlock_restrict_self", _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, _O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        if rights:  # a file has no names to be read
            rule = ctypes.byref(_PathBeneath(rights, descriptor))
            system_call("landlock_add_rule", _ADD_RULE, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
