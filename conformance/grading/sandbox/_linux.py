"""Calls of the Linux kernel that Python does not have, by ctypes; OSError names the call that was refused."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from typing import Any, Final

#: unshare and setns.
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
_MNT_DETACH: Final = 2

MOUNT_ATTR_RDONLY: Final = 1
MOUNT_ATTR_NOSUID: Final = 2
MOUNT_ATTR_NODEV: Final = 4

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_VERSION_3: Final = 0x20080522
#: More than there are capabilities; the kernel refuses to drop what it does not know.
_MOST_CAPABILITIES: Final = 64

#: The same on every architecture.
_SYS_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000

_libc: Final = ctypes.CDLL(None, use_errno=True)


def called(what: str, result: int) -> int:
    """The result of a call into the C library, which is negative when it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _need_linux(what: str) -> None:
    if platform.system() != "Linux":
        raise OSError(f"{what} is a call of Linux")


def system_call(what: str, number: int, *arguments: Any) -> int:
    """A system call by its number; integers are passed as long ones."""
    _need_linux(what)
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return called(what, _libc.syscall(ctypes.c_long(number), *wide))


def _prctl(what: str, option: int, value: int) -> None:
    _need_linux(what)
    called(what, _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))


def die_with_parent(signal: int) -> None:
    """Have the kernel send this signal when the parent, or only its thread that forked, ends."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """Have no program that is started gain privileges, for good."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.c_void_p))


def set_filter(instructions: Sequence[ctypes.Structure]) -> None:
    """Have a program decide about every system call of this process and of those that it starts, for good."""
    _need_linux("seccomp")
    held = (type(instructions[0]) * len(instructions))(*instructions)
    program = _Program(len(held), ctypes.addressof(held))
    what = "PR_SET_SECCOMP"
    called(what, _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program)))


def refuse_tracers() -> None:
    """Let no process of the same user read this one's memory, where the system has a word for that."""
    if platform.system() == "Linux":
        _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Give up all capabilities, and the means to get them back."""
    _need_linux("capset")
    for capability in range(_MOST_CAPABILITIES):
        try:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
        except OSError:
            break  # beyond the last one, or not allowed to, and then without any
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    called("capset", _libc.capset(header, (ctypes.c_uint32 * 6)()))


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _need_linux("unshare")
    called("unshare", _libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    """Enter a namespace."""
    called("setns", _libc.setns(descriptor, kind))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    """Mount a file system, or a folder or file in a second place."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    what = f"mounting {kind or source} at {target}"
    called(what, _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]))


def set_mount_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes to a mount, and to those below it; needs Linux 5.12."""
    four = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    what = f"restricting the mount {target}"
    system_call(what, _SYS_MOUNT_SETATTR, _AT_FDCWD, ctypes.c_char_p(os.fsencode(target)), flags, four, 32)


def pivot(root: str) -> None:
    """Make a mount the root, and let go of the old one."""
    os.chdir(root)
    called("pivot_root", _libc.pivot_root(b".", b"."))
    called("umount2", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")
