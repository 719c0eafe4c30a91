"""Baselines in folders: read whole or refused, and written so that an interruption leaves the old one as it was.

The arrays go to a file of their own that is named by the digest of its content. Then the manifest, which names it, is
replaced in one step. Then the files of arrays that no manifest names are removed. Each file, and the folder, is on disk
before the next step begins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from goldformer.conformance.baseline.arrays import (
    HEADER_AT_MOST,
    BadArrays,
    StoredArray,
    content_digest,
    from_bytes,
    places,
    size_of,
    to_bytes,
)
from goldformer.conformance.baseline.manifest import (
    AGAIN,
    NAME,
    ListedOutput,
    Manifest,
    make_baseline,
    manifest_digest,
    manifest_text,
    read_manifest,
)
from goldformer.conformance.baseline.model import Baseline, BaselineError, array_name
from goldformer.spec.files import read_regular_file

#: The prefix of files that are not complete yet.
_UNFINISHED: Final = ".unfinished-"
#: The number of attempts to lock a folder that other processes make and remove.
_ATTEMPTS: Final = 1000


def load(folder: Path) -> Baseline:
    """Read the baseline in a folder; BaselineError names the file and the field that is wrong, and says what to do."""
    manifest = read_manifest(folder)
    path = folder / manifest.arrays
    restore = f"restore the file, or {AGAIN} {folder}"
    listed = list(_list_arrays(manifest))
    most = HEADER_AT_MOST + sum(size_of(output.dtype, shape) for _, output, shape in listed)
    try:
        found = from_bytes(read_regular_file(path, most))
    except FileNotFoundError:
        # A recording that ended in the meantime removed the file that the old manifest names.
        if read_manifest(folder).arrays != manifest.arrays:
            return load(folder)
        named = f"{folder / NAME} names it under arrays"
        raise BaselineError(f"{path}: is missing, and {named}; {restore}") from None
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read: {error.strerror}; {restore}") from error
    except BadArrays as error:
        raise BaselineError(f"{path}: {error}; {restore}") from error
    arrays = {}
    for name, output, shape in listed:
        if name not in found:
            raise BaselineError(f"{path}: {name}: is missing, and {NAME} lists it; {restore}")
        dtype, values = found[name]
        if (dtype, values.shape) != (output.dtype, shape):
            actual = f"is {dtype} of shape {list(values.shape)}"
            raise BaselineError(f"{path}: {name}: {actual}, and {NAME} has {output.dtype} of {list(shape)}; {restore}")
        arrays[name] = StoredArray(dtype, tuple(output.shape), values, output.sha256)
    if unknown := found.keys() - arrays.keys():
        raise BaselineError(f"{path}: {min(unknown)}: is not listed in {NAME}; {restore}")
    content = content_digest(arrays)
    if path.name != _file_name(content):
        raise BaselineError(f"{path}: its numbers were changed: its name should be {_file_name(content)}; {restore}")
    if (digest := manifest_digest(manifest, content)) != manifest.digest:
        raise BaselineError(
            f"{folder / NAME}: digest: is {manifest.digest[:16]}…, and the file has {digest[:16]}…: a field was "
            f"changed after it was recorded; {restore}"
        )
    return make_baseline(manifest, arrays)


def _list_arrays(manifest: Manifest) -> Iterator[tuple[str, ListedOutput, tuple[int, ...]]]:
    """Yield the arrays of a manifest, each with its name and its shape in the file of arrays."""
    for result in manifest.results:
        for name, output in result.outputs.items():
            shape = tuple(output.shape)
            yield array_name(result.key, name), output, places(shape).shape if output.sha256 is not None else shape


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder from before a recording until it is written; BaselineError if another process has the lock.

    A missing folder is made, and removed again if nothing was written into it.
    """
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        locked = _lock_folder(folder)
    except OSError as error:
        raise BaselineError(f"{folder}: cannot be written: {error.strerror}") from error
    with locked:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                for path in made:
                    path.rmdir()


def _lock_folder(folder: Path) -> contextlib.ExitStack:
    """Make and lock a folder; closing the result unlocks it.

    The lock is on the folder itself: it leaves no file behind, and the system releases it when the process dies.
    """
    # Another process that made the folder and has nothing to write removes it at any moment, before it is opened or
    # while it is being made. So retry; no folder disappears that often.
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            return _try_lock_folder(folder)
    return _try_lock_folder(folder)


def _try_lock_folder(folder: Path) -> contextlib.ExitStack:
    """Make and lock a folder; FileNotFoundError or FileExistsError if another process made or removed it meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        handle = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BaselineError(
                f"{folder}: another baseline record or update is at work in this folder, and nothing was written; "
                "wait until it is done, or name another folder"
            ) from None
        except OSError as error:
            # Not every file system has locks.
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        if not os.path.samestat(os.fstat(handle), folder.stat()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        return stack.pop_all()


def save(folder: Path, baseline: Baseline) -> Path:
    """Replace the baseline of a folder, and return the file of its arrays.

    BaselineError if the folder holds other files, or cannot be written.
    """
    try:
        if folder.is_dir() and not (folder / NAME).exists() and any(map(_is_foreign, folder.iterdir())):
            raise BaselineError(f"{folder}: holds other files and no {NAME}; name a folder that is empty or new")
        folder.mkdir(parents=True, exist_ok=True)
        arrays = baseline.arrays
        content = content_digest(arrays)
        path = folder / _file_name(content)
        _replace(path, to_bytes(arrays))
        _replace(folder / NAME, manifest_text(baseline, path.name, content).encode())
        for other in folder.iterdir():
            if other != path and (other.match("arrays-*.safetensors") or other.name.startswith(_UNFINISHED)):
                other.unlink(missing_ok=True)
    except OSError as error:
        raise BaselineError(f"{folder}: cannot be written: {error.strerror}") from error
    return path


def _file_name(content: str) -> str:
    """Return the name of the file of arrays with that digest."""
    return f"arrays-{content[:16]}.safetensors"


def _is_foreign(path: Path) -> bool:
    """Return True if a file cannot come from an interrupted recording."""
    return not (path.match("arrays-*.safetensors") or path.name.startswith(_UNFINISHED))


def _replace(path: Path, content: bytes) -> None:
    """Replace a file in one step, and wait until the file and its folder are on disk."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    # Not every system opens folders.
    with contextlib.suppress(PermissionError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
