"""System calls that no answer needs, refused for good: a filter of the kernel's (seccomp), before anything is run.

They reach what namespaces do not part, such as keys and the sockets of virtual machines, or much of the kernel that
nothing else here does. What is refused looks like a kernel that does not have it.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.grading.sandbox._linux import set_filter

#: The same on every architecture: io_uring, mounts, clone3 (whose flags no filter can see), descriptors of others.
_EVERYWHERE: Final = (425, 426, 427, 428, 429, 430, 431, 432, 433, 435, 438, 440, 442)
#: Those that each architecture numbers as it likes: on x86-64, and on arm64.
_REFUSED: Final[Mapping[str, tuple[int, int]]] = {
    "ptrace": (101, 117), "syslog": (103, 116), "pivot_root": (155, 41), "chroot": (161, 51), "mount": (165, 40),
    "umount2": (166, 39), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "unshare": (272, 97), "setns": (308, 268), "perf_event_open": (298, 241), "open_by_handle_at": (304, 265),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "bpf": (321, 280),
    "userfaultfd": (323, 282),
}  # fmt: skip
_OF_X86_64, _OF_ARM64 = (tuple(numbers[place] for numbers in _REFUSED.values()) for place in (0, 1))


@dataclass(frozen=True, slots=True)
class _Machine:
    """How an architecture is told, and the numbers of its calls; from `beyond` on they are another's."""

    told: int
    refused: tuple[int, ...]
    clone: int
    socket: int
    beyond: int = 0


_MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(0xC000003E, _OF_X86_64, clone=56, socket=41, beyond=0x40000000),
    "aarch64": _Machine(0xC00000B7, _OF_ARM64, clone=220, socket=198),
}

#: The flags of clone that make namespaces, and the families of sockets that namespaces part: Unix and both of IP.
_NAMESPACES: Final = 0x7E020000
_FAMILIES: Final = (1, 2, 10)

# Instructions: load a word, compare it and jump over so many, answer.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _ANSWER = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
#: Where the number of the call, the architecture and the first argument are.
_NUMBER, _ARCHITECTURE, _FIRST = 0, 4, 16


class Instruction(ctypes.Structure):
    """One of them, as the kernel has it."""

    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


def refuse() -> None:
    """Refuse them from now on; OSError where that cannot be. New privileges must have been forbidden before."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little" or sys.maxsize < 1 << 32:
        raise OSError(f"the system calls of {platform.machine()} are not known here")
    set_filter([Instruction(*line) for line in _program(machine)])


def _program(machine: _Machine) -> list[tuple[int, int, int, int]]:
    absent, forbidden, none = ((_ANSWER, 0, 0, _ERROR | e) for e in (errno.ENOSYS, errno.EPERM, errno.EAFNOSUPPORT))
    allowed = (_ANSWER, 0, 0, _ALLOW)
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.told), absent, (_LOAD, 0, 0, _NUMBER)]
    if machine.beyond:
        program += [(_AT_LEAST, 0, 1, machine.beyond), absent]
    for number in (*machine.refused, *_EVERYWHERE):
        program += [(_EQUAL, 0, 1, number), absent]
    flags = [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NAMESPACES), forbidden, allowed]
    family = [(_LOAD, 0, 0, _FIRST), *_any_of(_FAMILIES, allowed), none]
    for number, then in ((machine.clone, flags), (machine.socket, family)):
        program += [(_EQUAL, 0, len(then), number), *then]
    return [*program, allowed]


def _any_of(values: Iterable[int], then: tuple[int, int, int, int]) -> Iterable[tuple[int, int, int, int]]:
    for value in values:
        yield from ((_EQUAL, 0, 1, value), then)
