"""Isolate a process step by step, before it reads a line of the code that it is to run.

A trial process takes the steps first and reports which of them this machine refuses. Every other process takes the
remaining steps, and one that fails is an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import platform
import resource
import signal
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.sandbox import _landlock as landlock
from goldformer.conformance.grading.sandbox import _linux as linux
from goldformer.conformance.grading.sandbox import _mounts as mounts
from goldformer.conformance.grading.sandbox._cgroup import join_group
from goldformer.conformance.grading.sandbox._seccomp import refuse_calls
from goldformer.conformance.grading.sandbox._types import Limits

#: The user that a process becomes if its own number has no meaning, as in a container that maps few of them.
_NOBODY: Final = 65534
_MIB: Final = 1 << 20
#: The number of files of the largest size that fit into the writable folder.
_TMP: Final = 4
_REPLIES: Final = 3
_REQUESTS: Final = 4
_PACKAGES: Final = sysconfig.get_paths()["purelib"]


@dataclass(frozen=True, slots=True)
class SandboxSetup:
    """A process to be isolated: the folder of its code, and the folder to which it may write.

    `root` is the file system that all share, `user` the number that it becomes if root started it, `others` the number
    of processes that its user has already, and `group` the folder of its control group.
    """

    code: str
    tmp: str
    root: str
    user: int
    limits: Limits
    others: int = 0
    group: str = ""


def make_environment(tmp: str) -> dict[str, str]:
    """Return the whole environment of a process."""
    return {
        "HOME": tmp,
        "TMPDIR": tmp,
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def close_descriptors(requests: int, replies: int, output: int) -> tuple[int, int]:
    """Close all descriptors but these and print to `output`; return the new numbers of the first two."""
    # Move them out of the way of the numbers that they are to have.
    requests, replies, output = (fcntl.fcntl(n, fcntl.F_DUPFD_CLOEXEC, 64) for n in (requests, replies, output))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(replies, _REPLIES, inheritable=False)
    os.dup2(requests, _REQUESTS, inheritable=False)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    os.closerange(_REQUESTS + 1, 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20))
    return _REQUESTS, _REPLIES


def _enter_own_root(setup: SandboxSetup) -> SandboxSetup:
    mounts.enter_own_root(setup.root, setup.code, _TMP * setup.limits.file)
    return replace(setup, code=mounts.CODE, tmp=mounts.TMP)


def _restrict_files(setup: SandboxSetup) -> None:
    """Restrict files by Landlock: in addition to a file system of its own, or instead of one."""
    inside = setup.code == mounts.CODE
    paths = mounts.list_readable() if inside else mounts.list_readable_without_own_package()
    # Python lists a folder to find a module: of folders that are not readable as a whole, it may read the names.
    names = () if inside else mounts.list_readable()
    landlock.restrict_files(
        [
            *((path, landlock.READ) for path in (*paths, setup.code)),
            *((path, landlock.LIST) for path in names),
            *((path, landlock.READ_FILE | landlock.WRITE_FILE) for path in mounts.list_devices()),
            (setup.tmp, landlock.list_all_rights()),
        ]
    )


def _join_group(setup: SandboxSetup) -> None:
    if not setup.group:
        raise OSError("there are no control groups for memory and processes that can be written to")
    join_group(setup.group)


def _drop_root(setup: SandboxSetup) -> None:
    """Become a user that owns nothing, and check that this user can read what Python has not read yet."""
    if os.geteuid() == 0:
        user = setup.user
        os.setgroups([])
        try:
            os.setgid(user)
        except OSError:
            user = _NOBODY
            os.setgid(user)
        with contextlib.suppress(OSError):
            os.chown(setup.tmp, user, user)
        os.setuid(user)
    for path in (os.__file__, _PACKAGES, setup.code):
        if not os.access(path, os.R_OK):
            raise OSError(_explain_unreadable(path, setup))


def _explain_unreadable(path: str, setup: SandboxSetup) -> str:
    """Return why this user cannot read a path, and what to do."""
    closed = next((str(at) for at in reversed(Path(path).parents) if not os.access(at, os.X_OK)), "")
    why = f", because they cannot enter {closed}" if closed else ", because of its mode"
    if path == setup.code:
        what = "set TMPDIR to a folder that every user can enter, such as /tmp"
    else:
        what = "run a Python that every user can read, such as /usr/bin/python3 in an environment outside of it"
    return f"{path} cannot be read by users other than root{why}; {what}"


def _set_limits(setup: SandboxSetup) -> None:
    limits = setup.limits
    seconds = math.ceil(limits.cpu)
    _lower_limit(resource.RLIMIT_CPU, seconds, seconds + 1)
    _lower_limit(resource.RLIMIT_FSIZE, limits.file * _MIB)
    _lower_limit(resource.RLIMIT_NOFILE, 256)
    _lower_limit(resource.RLIMIT_CORE, 0)
    if platform.system() == "Linux":  # macOS has the number and does not enforce it
        _lower_limit(resource.RLIMIT_AS, limits.memory * _MIB)
        # Timers count against it, and their memory belongs to the kernel.
        _lower_limit(resource.RLIMIT_SIGPENDING, 256)


def _limit_processes(setup: SandboxSetup) -> None:
    if os.geteuid() == 0:
        raise OSError("root may have any number of processes")
    if platform.system() != "Linux":
        raise OSError("all processes of a user count together")
    _lower_limit(resource.RLIMIT_NPROC, setup.limits.processes + setup.others)


def _lower_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, but never above the one in force."""
    bound = resource.getrlimit(kind)[1]
    hard = soft if hard is None else hard
    if bound != resource.RLIM_INFINITY:
        soft, hard = min(soft, bound), min(hard, bound)
    resource.setrlimit(kind, (soft, hard))


def _unshare(flag: int) -> Callable[[SandboxSetup], None]:
    return lambda _: linux.unshare(flag)


#: The steps in order; each is a feature of an Isolation. A step may return the setup as seen from inside.
STEPS: Final[Mapping[str, Callable[[SandboxSetup], SandboxSetup | None]]] = {
    "cgroup": _join_group,
    **{name: _unshare(flag) for name, flag in linux.FORK_NAMESPACES.items()},
    "mount-namespace": _enter_own_root,
    "no-new-privileges": lambda _: linux.forbid_new_privileges(),
    "landlock": _restrict_files,
    "unprivileged-user": _drop_root,
    "no-capabilities": lambda _: linux.drop_capabilities(),
    "limits": _set_limits,
    "process-limit": _limit_processes,
    # Last, because it refuses calls that earlier steps make.
    "system-calls": lambda _: refuse_calls(),
}


def isolate(setup: SandboxSetup, steps: Iterable[str]) -> SandboxSetup:
    """Take these steps and return the setup as seen from inside; after an OSError the process must not run anything."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ):
        signal.signal(signal_number, signal.SIG_DFL if signal_number != signal.SIGXFSZ else signal.SIG_IGN)
    for name in STEPS:
        if name in steps:
            setup = STEPS[name](setup) or setup
    linux.refuse_tracers()
    if platform.system() == "Linux":
        linux.die_with_parent(signal.SIGKILL)
    os.umask(0o077)
    os.chdir(setup.tmp)
    os.environ.clear()
    os.environ.update(make_environment(setup.tmp))
    return setup


def try_steps(setup: SandboxSetup, steps: Iterable[str]) -> dict[str, str]:
    """Take as many of these steps as this machine allows; return the refused ones with the reason."""
    refused: dict[str, str] = {}
    for name in STEPS:
        if name in steps:
            try:
                setup = STEPS[name](setup) or setup
            except OSError as error:
                refused[name] = str(error.strerror or error)
    return refused
