"""How a process shuts itself in, step by step, before it reads a line of what it is to run.

A trial process takes the steps first and says which of them this machine allows; every other process takes just
those, and one that fails is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import platform
import resource
import signal
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.grading.model import Limits
from goldformer.conformance.grading.sandbox import _cgroup as cgroup
from goldformer.conformance.grading.sandbox import _landlock as landlock
from goldformer.conformance.grading.sandbox import _linux as linux
from goldformer.conformance.grading.sandbox import _mounts as mounts
from goldformer.conformance.grading.sandbox import _namespaces as namespaces
from goldformer.conformance.grading.sandbox import _seccomp as calls

#: The user that a process becomes where its own number has no meaning, as in a container that maps few of them.
_NOBODY: Final = 65534
_MIB: Final = 1 << 20
#: How many files of the largest size the folder holds that a process may write to.
_TMP: Final = 4
_REPLIES: Final = 3
_REQUESTS: Final = 4
_PACKAGES: Final = sysconfig.get_paths()["purelib"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One process to be shut in: where what it runs lies, and where it may write.

    `root` is the file system that all share; `user` the number that it becomes where it is started by root; `others`
    how many processes there are of its user, beside its own; `groups` the folders of its control groups.
    """

    box: str
    tmp: str
    root: str
    user: int
    limits: Limits
    others: int = 0
    groups: tuple[str, ...] = ()


def environment(tmp: str) -> dict[str, str]:
    """All of a process' environment."""
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


def keep_only(requests: int, replies: int, output: int) -> tuple[int, int]:
    """Close all descriptors but these, read nothing, print to `output`; the numbers that the first two have then."""
    # Out of the way of the numbers that they are to have.
    requests, replies, output = (_moved(descriptor) for descriptor in (requests, replies, output))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(replies, _REPLIES, inheritable=False)
    os.dup2(requests, _REQUESTS, inheritable=False)
    os.closerange(_REQUESTS + 1, _most_descriptors())
    return _REQUESTS, _REPLIES


def _moved(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64)


def _most_descriptors() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)


def _own_namespace(flag: int) -> Callable[[Cell], Cell]:
    def step(cell: Cell) -> Cell:
        linux.unshare(flag)
        return cell

    return step


def _own_root(cell: Cell) -> Cell:
    mounts.own_root(cell.root, cell.box, _TMP * cell.limits.file)
    return dataclasses.replace(cell, box=mounts.BOX, tmp=mounts.TMP)


def _forbid_new_privileges(cell: Cell) -> Cell:
    linux.forbid_new_privileges()
    return cell


def _restrict_files(cell: Cell) -> Cell:
    """As a second wall behind a file system of its own, or, without one, as the only one."""
    inside = cell.box == mounts.BOX
    paths = mounts.readable() if inside else mounts.readable_but_ours()
    # To find a module Python lists the folder: names alone may be read of those that are not shown as a whole.
    names = () if inside else mounts.readable()
    landlock.restrict(
        [
            *((path, landlock.READ) for path in (*paths, cell.box)),
            *((path, landlock.LIST) for path in names),
            *((path, landlock.READ_FILE | landlock.WRITE_FILE) for path in mounts.devices()),
            (cell.tmp, landlock.everything()),
        ]
    )
    return cell


def _join_groups(cell: Cell) -> Cell:
    if not cell.groups:
        raise OSError("there are no control groups for memory and processes that can be written to")
    for folder in cell.groups:
        cgroup.join(folder)
    return cell


def _leave_root(cell: Cell) -> Cell:
    """Become a user that owns nothing; and see that this user can still read what Python has not read yet."""
    if os.geteuid() == 0:
        user = cell.user
        os.setgroups([])
        try:
            os.setgid(user)
        except OSError:
            user = _NOBODY
            os.setgid(user)
        with contextlib.suppress(OSError):
            os.chown(cell.tmp, user, user)
        os.setuid(user)
    for path in (os.__file__, _PACKAGES, cell.box):
        if not os.access(path, os.R_OK):
            raise OSError(f"{path} cannot be read by users other than root")
    return cell


def _drop_capabilities(cell: Cell) -> Cell:
    linux.drop_capabilities()
    return cell


def _limit(cell: Cell) -> Cell:
    limits = cell.limits
    seconds = math.ceil(limits.cpu)
    _lower(resource.RLIMIT_CPU, seconds, seconds + 1)
    _lower(resource.RLIMIT_FSIZE, limits.file * _MIB)
    _lower(resource.RLIMIT_NOFILE, 256)
    _lower(resource.RLIMIT_CORE, 0)
    if platform.system() == "Linux":  # macOS has the number, and does not keep to it
        _lower(resource.RLIMIT_AS, limits.memory * _MIB)
    return cell


def _limit_processes(cell: Cell) -> Cell:
    if os.geteuid() == 0:
        raise OSError("root may have any number of processes")
    if platform.system() != "Linux":
        raise OSError("all processes of a user count together")
    _lower(resource.RLIMIT_NPROC, cell.limits.processes + cell.others)
    return cell


def _refuse_calls(cell: Cell) -> Cell:
    calls.refuse()
    return cell


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, below the one that is in force already."""
    bound = resource.getrlimit(kind)[1]
    hard = soft if hard is None else hard
    if bound != resource.RLIM_INFINITY:
        soft, hard = min(soft, bound), min(hard, bound)
    resource.setrlimit(kind, (soft, hard))


#: What is done, in order; each step is a feature of an Isolation.
STEPS: Final[Mapping[str, Callable[[Cell], Cell]]] = {
    "cgroup": _join_groups,
    **{name: _own_namespace(flag) for name, flag in namespaces.OWN.items()},
    "mount-namespace": _own_root,
    "no-new-privileges": _forbid_new_privileges,
    "landlock": _restrict_files,
    "unprivileged-user": _leave_root,
    "no-capabilities": _drop_capabilities,
    "limits": _limit,
    "process-limit": _limit_processes,
    # Last, for some of those before are among them.
    "system-calls": _refuse_calls,
}


def shut_in(cell: Cell, steps: Iterable[str]) -> Cell:
    """Take these steps; the cell as it is seen from inside. After an OSError the process is not to run anything."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ):
        signal.signal(signal_number, signal.SIG_DFL if signal_number != signal.SIGXFSZ else signal.SIG_IGN)
    for name in STEPS:
        if name in steps:
            cell = STEPS[name](cell)
    linux.refuse_tracers()
    if platform.system() == "Linux":
        linux.die_with_parent(signal.SIGKILL)
    os.umask(0o077)
    os.chdir(cell.tmp)
    os.environ.clear()
    os.environ.update(environment(cell.tmp))
    return cell


def tried(cell: Cell, steps: Iterable[str]) -> dict[str, str]:
    """Take these steps as far as they go; for each that was refused, why."""
    refused: dict[str, str] = {}
    for name in STEPS:
        if name in steps:
            try:
                cell = STEPS[name](cell)
            except OSError as error:
                refused[name] = str(error.strerror or error)
    return refused
