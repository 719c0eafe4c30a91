"""Give a process a file system of its own: the interpreter and the system's libraries to read, one folder to write.

`make_root` builds the part that all processes share, once; `enter_own_root` adds the two folders of a process.
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
from importlib import resources
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.sandbox import _linux as linux

#: The folders of a process' code and of the files that it writes. No Python installation has such a path.
CODE: Final = "/sandbox/code"
TMP: Final = "/sandbox/tmp"
_SYSTEM: Final = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/local/lib")
_ETC: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld-musl-x86_64.path", "/etc/localtime")
#: The folders of a virtual environment, and the file that marks it as one.
_VIRTUAL: Final = ("bin", "lib", "lib64")
_CONFIG: Final = "pyvenv.cfg"
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_READ_ONLY: Final = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID


def list_python_folders() -> list[str]:
    """Return the folders of Python and of the packages installed for it, by every name that they have."""
    paths = sysconfig.get_paths()
    names = [sys.base_prefix, sys.base_exec_prefix]
    # The folder of a virtual environment may hold a course too: only its own folders are readable.
    own = {sys.prefix, sys.exec_prefix} - {*names}
    names += [os.path.join(prefix, name) for prefix in own for name in _VIRTUAL]
    names += [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    names += [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    every = {path for name in names for path in (os.path.abspath(name), os.path.realpath(name))}
    folders = sorted(path for path in every if os.path.isdir(path))
    return [path for path in folders if not any(path.startswith(f"{other}/") for other in folders)]


def list_own_folders() -> list[str]:
    """Return the folders of this package, wherever they are: cases, the reference, and the code that judges."""
    packages = Path(str(resources.files("goldformer")))
    folders = {packages, *(path for path in packages.iterdir() if path.is_dir())}
    return sorted({os.path.realpath(folder) for folder in folders} | {str(packages)})


@cache
def list_readable() -> tuple[str, ...]:
    """Return the files and folders that a process may read in addition to its own folders."""
    files = (os.path.join(sys.prefix, _CONFIG), *_SYSTEM, *_ETC)
    return (*list_python_folders(), *(path for path in files if os.path.exists(path)))


@cache
def list_readable_without_own_package() -> tuple[str, ...]:
    """Return the same without the folders of this package: a folder that holds one is replaced by its other entries."""
    return tuple(entry for path in list_readable() for entry in _exclude(path, list_own_folders()))


def _exclude(path: str, hidden: Sequence[str]) -> Iterator[str]:
    real = os.path.realpath(path)
    if any(real == other or real.startswith(f"{other}/") for other in hidden):
        return
    if not any(other.startswith(f"{real}/") for other in hidden):
        yield path
        return
    for name in sorted(os.listdir(path)):
        yield from _exclude(f"{path}/{name}", hidden)


@cache
def list_devices() -> tuple[str, ...]:
    """Return the devices that every process has."""
    return tuple(path for path in _DEVICES if os.path.exists(path))


def make_root(folder: str) -> None:
    """Build the root that all processes share on a folder, in a new mount namespace of this process."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("none", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")
    for path in (*list_readable(), *list_devices()):
        _bind_read_only(folder, path)
    for path in list_own_folders():
        if os.path.isdir(folder + path):
            linux.mount("none", folder + path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=4k,mode=755")
            linux.set_mount_attributes(folder + path, _READ_ONLY, recursive=False)
    for path in (CODE, TMP):
        os.makedirs(folder + path, 0o755, exist_ok=True)
    for usual in ("/tmp", "/dev/shm"):
        with contextlib.suppress(FileExistsError):  # Python lies below it
            os.symlink(TMP, folder + usual)
    linux.set_mount_attributes(folder, _READ_ONLY, recursive=False)


def enter_own_root(folder: str, code: str, size: int) -> None:
    """Mount the code at CODE and an empty folder of `size` MiB at TMP, and leave everything else."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount(code, folder + CODE, None, linux.MS_BIND | linux.MS_REC)
    linux.set_mount_attributes(folder + CODE, _READ_ONLY | linux.MOUNT_ATTR_NODEV, recursive=True)
    options = f"size={size}m,nr_inodes=4096,mode=700"
    linux.mount("none", folder + TMP, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    linux.pivot(folder)


def _bind_read_only(folder: str, path: str) -> None:
    """Mount a file or folder of this machine at the same place below a folder, read-only; a link stays a link."""
    target = folder + path
    if os.path.lexists(target):
        return
    for parent in (str(parent) for parent in reversed(Path(path).parents) if str(parent) != "/"):
        if os.path.islink(folder + parent):
            return  # its target is mounted
        os.makedirs(folder + parent, 0o755, exist_ok=True)
    if os.path.islink(path):
        destination = os.path.realpath(path)
        os.symlink(os.readlink(path), target)
        if not os.path.lexists(folder + destination):
            _bind_read_only(folder, destination)
        return
    if os.path.isdir(path):
        os.mkdir(target, 0o755)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.mount(path, target, None, linux.MS_BIND | linux.MS_REC)
    if path not in _DEVICES:
        linux.set_mount_attributes(target, _READ_ONLY | linux.MOUNT_ATTR_NODEV, recursive=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder whose files an untrusted program may have changed in any way."""
    with contextlib.suppress(FileNotFoundError):
        try:
            shutil.rmtree(folder)
        except (OSError, RecursionError):
            # Folders without permission, or too deep for Python; these two commands follow no links.
            for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
                subprocess.run([*command, "--", folder], check=False, capture_output=True)
