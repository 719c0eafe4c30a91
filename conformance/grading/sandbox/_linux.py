"""Calls of the Linux kernel that Python does not have, by ctypes; OSError names the call that failed."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

#: Flags of unshare and setns.
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
#: Public, because the filter of system calls refuses to undo it.
PR_SET_THP_DISABLE: Final = 41
_CAPABILITY_VERSION_3: Final = 0x20080522
#: More than there are capabilities: the kernel refuses to drop one that it does not know.
_MOST_CAPABILITIES: Final = 64

#: The same number on every architecture.
_SYS_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _check(what: str, result: int) -> int:
    """Return the result of a call into the C library; OSError if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _need_linux(what: str) -> None:
    if platform.system() != "Linux":
        raise OSError(f"{what} is a call of Linux")


def call_kernel(what: str, number: int, *arguments: Any) -> int:
    """Make a system call by its number; integers are passed as long."""
    _need_linux(what)
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(what, _libc.syscall(ctypes.c_long(number), *wide))


def _prctl(what: str, option: int, value: int) -> None:
    _need_linux(what)
    _check(what, _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))


def die_with_parent(signal: int) -> None:
    """Have the kernel send this signal when the parent ends, or only the thread of it that forked."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def refuse_huge_pages() -> None:
    """Give this process, and all that it starts, memory only in ordinary pages."""
    _prctl("PR_SET_THP_DISABLE", PR_SET_THP_DISABLE, 1)


def forbid_new_privileges() -> None:
    """Keep every program that is started from gaining privileges, for good."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.c_void_p))


def set_filter(instructions: Sequence[ctypes.Structure]) -> None:
    """Let a program decide about every system call of this process and of those that it starts, for good."""
    _need_linux("seccomp")
    array = (type(instructions[0]) * len(instructions))(*instructions)
    program = _Program(len(array), ctypes.addressof(array))
    result = _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program))
    _check("PR_SET_SECCOMP", result)


def refuse_tracers() -> None:
    """Keep processes of the same user from reading this one's memory, if the system can."""
    if platform.system() == "Linux":
        _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Give up all capabilities, and the means to get them back."""
    _need_linux("capset")
    for capability in range(_MOST_CAPABILITIES):
        try:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
        except OSError:
            break  # beyond the last one; or not permitted, and then the process has none
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check("capset", _libc.capset(header, (ctypes.c_uint32 * 6)()))


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _need_linux("unshare")
    _check("unshare", _libc.unshare(flags))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    """Mount a file system, or a folder or file in a second place."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    what = f"mounting {kind or source} at {target}"
    _check(what, _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]))


def set_mount_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes to a mount, and to those below it; needs Linux 5.12."""
    four = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    what = f"restricting the mount {target}"
    call_kernel(what, _SYS_MOUNT_SETATTR, _AT_FDCWD, ctypes.c_char_p(os.fsencode(target)), flags, four, 32)


def pivot(root: str) -> None:
    """Make a mount the root, and unmount the old one."""
    os.chdir(root)
    _check("pivot_root", _libc.pivot_root(b".", b"."))
    _check("umount2", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


# Namespaces: first of the launcher, then of each process that it forks.

USER_NAMESPACE: Final = "user-namespace"
PID_NAMESPACE: Final = "pid-namespace"
#: Those that a fork makes for itself. Each is empty: the network has not even a loopback.
FORK_NAMESPACES: Final = {
    "network-namespace": CLONE_NEWNET,
    "ipc-namespace": CLONE_NEWIPC,
    "uts-namespace": CLONE_NEWUTS,
}


def enter_namespaces(without: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Become able to make namespaces, as root or in a user namespace, and make a PID namespace for the next fork.

    Return the features in force, and those that are refused with the reason. Must be called before any thread or
    library is started.
    """
    features: list[str] = []
    refused: dict[str, str] = {}
    if os.geteuid() != 0 and USER_NAMESPACE not in without:
        try:
            _enter_user_namespace(os.geteuid(), os.getegid())
            features.append(USER_NAMESPACE)
        except OSError as error:
            refused[USER_NAMESPACE] = str(error.strerror or error)
    if PID_NAMESPACE not in without:
        try:
            unshare(CLONE_NEWPID)
            features.append(PID_NAMESPACE)
        except OSError as error:
            refused[PID_NAMESPACE] = str(error.strerror or error)
    return features, refused


def _enter_user_namespace(user: int, group: int) -> None:
    """Make a user namespace in which this process has every capability and keeps its user."""
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


class PidNamespaces:
    """Makes PID namespaces, one for each fork: when its first process ends, all others in it end."""

    def __init__(self) -> None:
        """Remember the namespace of this process."""
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def prepare_next(self) -> None:
        """Have the next fork, and no other, begin a PID namespace."""
        _check("setns", _libc.setns(self._own, CLONE_NEWPID))
        unshare(CLONE_NEWPID)
