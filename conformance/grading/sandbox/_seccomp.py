"""Refuse system calls that no answer needs, for good: a filter of the kernel (seccomp).

They reach what namespaces do not separate, such as keys; memory that no limit of a process counts, or that outlives it
(files in memory, buffers of sockets, System V objects, message queues); the network, and the services of this machine;
the priorities and limits of other processes; modes, owners, times, attributes and leases of files; and large parts of
the kernel that nothing else here uses. A refused call fails as in a kernel that does not have it, or for lack of a
right.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.grading.sandbox._linux import PR_SET_THP_DISABLE, set_filter

#: Numbers that are the same on every architecture: io_uring, mounts and lists of them, clone3 and openat2 (whose flags
#: no filter can see), descriptors of other processes, secret memory.
_EVERYWHERE: Final = (425, 426, 427, 428, 429, 430, 431, 432, 433, 435, 437, 438, 440, 442, 447, 457, 458, 467)
#: Numbers that differ: on x86-64, and on arm64.
_REFUSED: Final[Mapping[str, tuple[int, int]]] = {
    "ptrace": (101, 117), "syslog": (103, 116), "pivot_root": (155, 41), "chroot": (161, 51), "mount": (165, 40),
    "umount2": (166, 39), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "unshare": (272, 97), "setns": (308, 268), "perf_event_open": (298, 241), "open_by_handle_at": (304, 265),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "bpf": (321, 280),
    "userfaultfd": (323, 282), "memfd_create": (319, 279), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "shmdt": (67, 197), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    # Pages in a pipe outlive their memory, which belongs to no process then.
    "vmsplice": (278, 75),
    # Sockets of every kind: by Unix sockets, services of this machine answer that no rule on files covers, and the
    # buffers of a pair hold memory that belongs to no process.
    "socket": (41, 198), "socketpair": (53, 199),
    # Each session gets a share of the processor of its own. Who cannot leave its group is killed with all of it at
    # once, however fast it forks.
    "setsid": (112, 157), "setpgid": (109, 154),
    # Other processes of an ordinary user, such as the launcher, can be slowed down by these.
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30), "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # One process could take all requests that the machine allows.
    "io_setup": (206, 0),
    # They show which files others open, and an ordinary user has few of them.
    "inotify_init1": (294, 26), "fanotify_init": (300, 262),
}  # fmt: skip
_OF_X86_64, _OF_ARM64 = (tuple(numbers[place] for numbers in _REFUSED.values()) for place in (0, 1))
#: Modes, owners, times, attributes and lengths of files, which Landlock does not cover, or not in every version: an
#: ordinary user's submission could close the other submissions to the grader, and open the seed to everybody.
_ATTRIBUTES: Final[Mapping[str, tuple[int, int]]] = {
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55), "fchownat": (260, 54),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "file_setattr": (469, 469), "truncate": (76, 45),
}  # fmt: skip
#: Older calls that only x86-64 has: inotify_init; chmod, chown, lchown, utime, utimes, futimesat.
_OLD_WATCH: Final = 253
_OLD_ATTRIBUTES: Final = (90, 92, 94, 132, 235, 261)


@dataclass(frozen=True, slots=True)
class _Machine:
    """An architecture's identifier and call numbers; numbers from `beyond` on belong to another architecture."""

    identifier: int
    refused: tuple[int, ...]
    attributes: tuple[int, ...]
    clone: int
    fcntl: int
    ioctl: int
    openat: int
    prlimit: int
    prctl: int
    beyond: int = 0
    #: The older call that takes a path and flags; 0 if there is none.
    open: int = 0


_MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(
        0xC000003E,
        (*_OF_X86_64, _OLD_WATCH),
        (*(numbers[0] for numbers in _ATTRIBUTES.values()), *_OLD_ATTRIBUTES),
        clone=56,
        fcntl=72,
        ioctl=16,
        openat=257,
        prlimit=302,
        prctl=157,
        beyond=0x40000000,
        open=2,
    ),
    "aarch64": _Machine(
        0xC00000B7,
        _OF_ARM64,
        tuple(numbers[1] for numbers in _ATTRIBUTES.values()),
        clone=220,
        fcntl=25,
        ioctl=29,
        openat=56,
        prlimit=261,
        prctl=167,
    ),
}

#: The flags of clone that make namespaces.
_NAMESPACES: Final = 0x7E020000

# Instructions: load a word; compare it and jump; answer.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _ANSWER = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
#: Offsets of the number of the call, the architecture and the first three arguments.
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
#: Commands of fcntl that are refused: F_SETOWN, F_SETSIG and F_SETOWN_EX, which have signals sent to others;
#: F_SETLEASE, as another process that opens the file waits, up to 45 seconds for each file of Python; F_NOTIFY, which
#: tells what others do in a folder; and F_SETPIPE_SZ, for buffers that belong to no process.
_FCNTL_REFUSED: Final = (8, 10, 15, 1024, 1026, 1031)
#: Commands of ioctl that are allowed, those of terminals and pipes: TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO,
#: FIONCLEX, FIOCLEX. Others change attributes of files.
_IOCTL_ALLOWED: Final = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
#: Flags of open. A file that is opened for reading and emptied is written to: old versions of Landlock allow it.
_TRUNCATES, _WRITES = 0o1000, 0o3


#: The fields of an instruction.
Line = tuple[int, int, int, int]


class Instruction(ctypes.Structure):
    """An instruction of a filter in the kernel's layout."""

    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


def refuse_calls() -> None:
    """Refuse these calls from now on; OSError if that is impossible. New privileges must be forbidden already."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little" or sys.maxsize < 1 << 32:
        raise OSError(f"the system calls of {platform.machine()} are not known here")
    set_filter([Instruction(*line) for line in _write_program(machine)])


def _write_program(machine: _Machine) -> list[Line]:
    absent, forbidden = ((_ANSWER, 0, 0, _ERROR | e) for e in (errno.ENOSYS, errno.EPERM))
    allowed = (_ANSWER, 0, 0, _ALLOW)
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.identifier), absent, (_LOAD, 0, 0, _NUMBER)]
    if machine.beyond:
        program += [(_AT_LEAST, 0, 1, machine.beyond), absent]
    for number in (*machine.refused, *_EVERYWHERE):
        program += [(_EQUAL, 0, 1, number), absent]
    for number in machine.attributes:
        program += [(_EQUAL, 0, 1, number), forbidden]
    flags = [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NAMESPACES), forbidden, allowed]
    own = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, 0), forbidden, allowed]  # 0 is the calling process
    # Memory in huge pages could not be measured by page faults.
    pages = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, PR_SET_THP_DISABLE), forbidden, allowed]
    waits = [(_LOAD, 0, 0, _SECOND), *_match(_FCNTL_REFUSED, forbidden, allowed)]
    controls = [(_LOAD, 0, 0, _SECOND), *_match(_IOCTL_ALLOWED, allowed, forbidden)]
    empties = [(_ANY_BIT, 0, 2, _TRUNCATES), (_ANY_BIT, 1, 0, _WRITES), forbidden, allowed]
    judged = {
        machine.clone: flags, machine.prlimit: own, machine.prctl: pages, machine.fcntl: waits,
        machine.ioctl: controls, machine.openat: [(_LOAD, 0, 0, _THIRD), *empties],
    }  # fmt: skip
    if machine.open:
        judged[machine.open] = [(_LOAD, 0, 0, _SECOND), *empties]
    for number, then in judged.items():
        program += [(_EQUAL, 0, len(then), number), *then]
    return [*program, allowed]


def _match(values: Sequence[int], then: Line, otherwise: Line) -> list[Line]:
    """Return the instructions that answer whether what is loaded is one of some values."""
    lines = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*lines, otherwise, then]
