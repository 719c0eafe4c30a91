"""Restrict which files a process may open, for good and whatever file system it sees (Landlock).

The system calls are documented in landlock(7); the rights depend on the kernel's version of Landlock.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from typing import Final

from goldformer.conformance.grading.sandbox._linux import call_kernel

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
#: Python has this flag only on Linux.
_O_PATH: Final = 0o10000000
_VERSION: Final = 1
_PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
_MAKE_CHAR: Final = 1 << 6
_MAKE_BLOCK: Final = 1 << 11
#: The number of rights over files, from each version on.
_RIGHTS: Final[Mapping[int, int]] = {1: 13, 2: 14, 3: 15, 5: 16}
#: The rights of a file, as opposed to a folder.
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
_NETWORK: Final = 0b11
_SCOPES: Final = 0b11
_FIRST_WITH_NETWORK: Final = 4
_FIRST_WITH_SCOPES: Final = 6

READ: Final = EXECUTE | READ_FILE | READ_DIR
LIST: Final = READ_DIR


def find_version() -> int:
    """Return the kernel's version of Landlock; OSError if it has none."""
    return call_kernel("landlock", _CREATE_RULESET, None, 0, _VERSION)


def list_all_rights() -> int:
    """Return all rights over files that the kernel knows, except making devices."""
    known = find_version()
    count = max(bits for first, bits in _RIGHTS.items() if first <= known)
    return ((1 << count) - 1) & ~(_MAKE_CHAR | _MAKE_BLOCK)


def restrict_files(allowed: Iterable[tuple[str, int]]) -> None:
    """Allow this process only these rights below these paths; forbid TCP and signals to processes outside.

    A restriction that the kernel's version does not know is not in force. New privileges must be forbidden already.
    """
    known = find_version()
    files = list_all_rights() | _MAKE_CHAR | _MAKE_BLOCK
    network = _NETWORK if known >= _FIRST_WITH_NETWORK else 0
    scopes = _SCOPES if known >= _FIRST_WITH_SCOPES else 0
    # An older kernel accepts a longer structure if the fields that it does not know are zero.
    attributes = (ctypes.c_uint64 * 3)(files, network, scopes)
    rules = call_kernel("landlock_create_ruleset", _CREATE_RULESET, attributes, ctypes.sizeof(attributes), 0)
    try:
        for path, rights in allowed:
            _allow(rules, path, rights & files)
        call_kernel("landlock_restrict_self", _RESTRICT_SELF, rules, 0)
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
        return  # a missing path needs no right
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        if rights:  # a file cannot be listed
            rule = ctypes.byref(_PathBeneath(rights, descriptor))
            call_kernel("landlock_add_rule", _ADD_RULE, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
