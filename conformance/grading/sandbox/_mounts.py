"""A file system of its own for a process: the interpreter and the system's libraries to read, and one folder to write.

`make_root` builds what all processes share, once; `own_root` adds a process' own two folders and makes it the root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import goldformer
from goldformer.conformance.grading.sandbox import _linux as linux
from goldformer.conformance.grading.sandbox._linux import (
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
)

#: Where a process finds what it is to run, and where it may write: where no Python is.
BOX: Final = "/jail/box"
TMP: Final = "/jail/tmp"
_SYSTEM: Final = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib")
_ETC: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld-musl-x86_64.path", "/etc/localtime")
#: The folders of a virtual environment, and the file that says that it is one.
_VIRTUAL: Final = ("bin", "lib", "lib64")
_CONFIG: Final = "pyvenv.cfg"
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_READ_ONLY: Final = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID


def interpreter() -> list[str]:
    """The folders of Python and of what is installed for it, by every name that they have."""
    paths = sysconfig.get_paths()
    names = [sys.base_prefix, sys.base_exec_prefix]
    # A virtual environment may be made in the very folder that holds the course: what is its own in there.
    own = {sys.prefix, sys.exec_prefix} - {*names}
    names += [os.path.join(prefix, name) for prefix in own for name in _VIRTUAL]
    names += [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    names += [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    every = {name for given in names for name in (os.path.abspath(given), os.path.realpath(given))}
    found = sorted(name for name in every if os.path.isdir(name))
    return [name for name in found if not any(name.startswith(f"{other}/") for other in found)]


def ours() -> list[str]:
    """The folders of this package, wherever they are: cases, the reference, and the code that grades."""
    packages = Path(goldformer.__file__).parent
    folders = {packages, *(path for path in packages.iterdir() if path.is_dir())}
    return sorted({os.path.realpath(folder) for folder in folders} | {str(packages)})


@cache
def readable() -> tuple[str, ...]:
    """What a process may read beside its own folders: folders and files."""
    files = (os.path.join(sys.prefix, _CONFIG), *_SYSTEM, *_ETC)
    return (*interpreter(), *(path for path in files if os.path.exists(path)))


@cache
def readable_but_ours() -> tuple[str, ...]:
    """The same without the folders of this package: in place of a folder that holds one, all else that it holds."""
    return tuple(found for path in readable() for found in _without(path, ours()))


def _without(path: str, hidden: Sequence[str]) -> Iterator[str]:
    real = os.path.realpath(path)
    if any(real == other or real.startswith(f"{other}/") for other in hidden):
        return
    if not any(other.startswith(f"{real}/") for other in hidden):
        yield path
        return
    for name in sorted(os.listdir(path)):
        yield from _without(f"{path}/{name}", hidden)


@cache
def devices() -> tuple[str, ...]:
    """The devices that every process has."""
    return tuple(path for path in _DEVICES if os.path.exists(path))


def make_root(folder: str) -> None:
    """Build the root that all processes share, on a folder, in a mount namespace of this process' own."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, MS_REC | MS_PRIVATE)
    linux.mount("none", folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in (*readable(), *devices()):
        _show(folder, path)
    for path in ours():
        if os.path.isdir(folder + path):
            linux.mount("none", folder + path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=755")
            linux.set_mount_attributes(folder + path, _READ_ONLY, recursive=False)
    for path in (BOX, TMP):
        os.makedirs(folder + path, 0o755, exist_ok=True)
    for usual in ("/tmp", "/dev/shm"):
        with contextlib.suppress(FileExistsError):  # when Python is below it
            os.symlink(TMP, folder + usual)
    linux.set_mount_attributes(folder, _READ_ONLY, recursive=False)


def own_root(folder: str, box: str, size: int) -> None:
    """Show the box at BOX and an empty folder of so many MiB at TMP, and let go of everything else."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount(box, folder + BOX, None, MS_BIND | MS_REC)
    linux.set_mount_attributes(folder + BOX, _READ_ONLY | MOUNT_ATTR_NODEV, recursive=True)
    linux.mount("none", folder + TMP, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size}m,nr_inodes=4096,mode=700")
    linux.pivot(folder)


def _show(folder: str, path: str) -> None:
    """Mount a file or folder of this machine at the same place below a folder, to be read; a link stays a link."""
    target = folder + path
    if os.path.lexists(target):
        return
    for parent in _parents(path):
        if os.path.islink(folder + parent):
            return  # it is shown where that leads
        os.makedirs(folder + parent, 0o755, exist_ok=True)
    if os.path.islink(path):
        leads = os.path.realpath(path)
        os.symlink(os.readlink(path), target)
        if not os.path.lexists(folder + leads):
            _show(folder, leads)
        return
    if os.path.isdir(path):
        os.mkdir(target, 0o755)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.mount(path, target, None, MS_BIND | MS_REC)
    if path not in _DEVICES:
        linux.set_mount_attributes(target, _READ_ONLY | MOUNT_ATTR_NODEV, recursive=True)


def _parents(path: str) -> Iterator[str]:
    yield from (str(parent) for parent in reversed(Path(path).parents) if str(parent) != "/")


def remove(folder: Path) -> None:
    """Remove a folder in which anything may have been done to its files."""
    with contextlib.suppress(FileNotFoundError):
        try:
            shutil.rmtree(folder)
        except (OSError, RecursionError):
            # Folders that are closed, or deeper than Python follows; these two follow no links.
            for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
                subprocess.run([*command, "--", folder], check=False, capture_output=True)
