"""Baselines in folders: read whole or refused, and written so that an interruption leaves the old one as it was.

The arrays go to a file of their own that is named by what it holds. Then the manifest, which names it, is put in its
place in one step; then arrays that no manifest names are removed. Each file, and the folder, is on disk before the next
step begins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from goldformer.conformance.baseline.arrays import (
    HEADER_AT_MOST,
    Array,
    BadArrays,
    Kept,
    content_digest,
    places,
    read,
    size_of,
    written,
)
from goldformer.conformance.baseline.manifest import (
    AGAIN,
    NAME,
    ManifestModel,
    OutputModel,
    from_manifest,
    manifest_digest,
    manifest_text,
    read_manifest,
)
from goldformer.conformance.baseline.model import Baseline, BaselineError, Key, array_name

#: What the name of a file begins with that is not yet in its place.
_UNFINISHED: Final = ".unfinished-"
#: So often a folder may come and go while it is taken: others are about, and none of them can be so often.
_ATTEMPTS: Final = 1000


def load(folder: Path) -> Baseline:
    """The baseline in a folder; BaselineError names the file and the field that is wrong, and says what to do."""
    manifest = read_manifest(folder)
    path = folder / manifest.arrays
    restore = f"restore the file, or {AGAIN} {folder}"
    listed = list(_listed(manifest))
    most = HEADER_AT_MOST + sum(size_of(output.dtype, held) for _, output, held in listed)
    try:
        stored = read(_read_at_most(path, most))
    except FileNotFoundError:
        # A recording that ends while this reads takes away what its manifest names no more.
        if read_manifest(folder).arrays != manifest.arrays:
            return load(folder)
        named = f"{folder / NAME} names it under arrays"
        raise BaselineError(f"{path}: is missing, and {named}; {restore}") from None
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read: {error.strerror}") from error
    except BadArrays as error:
        raise BaselineError(f"{path}: {error}; {restore}") from error
    kept = dict(_kept(listed, stored, path, restore))
    if unknown := stored.keys() - kept.keys():
        raise BaselineError(f"{path}: {min(unknown)}: is not listed in {NAME}; {restore}")
    content = content_digest(kept)
    if path.name != _name(content):
        raise BaselineError(f"{path}: its numbers were changed: its name should be {_name(content)}; {restore}")
    if (digest := manifest_digest(manifest, content)) != manifest.digest:
        raise BaselineError(
            f"{folder / NAME}: digest: is {manifest.digest[:16]}…, and the file has {digest[:16]}…: a field was "
            f"changed after it was recorded; {restore}"
        )
    return from_manifest(manifest, kept)


def _listed(manifest: ManifestModel) -> Iterator[tuple[str, OutputModel, tuple[int, ...]]]:
    """What the manifest lists, each with its name in the file of arrays and the shape that it has there."""
    for result in manifest.results:
        key = Key(result.case, result.dtype, result.device)
        for name, output in result.outputs.items():
            shape = tuple(output.shape)
            yield array_name(key, name), output, places(shape).shape if output.sha256 is not None else shape


def _read_at_most(path: Path, most: int) -> bytes:
    """Return the bytes of a file; BadArrays if it has more than `most`, before it fills the memory.

    BadArrays also if it is not a regular file: a pipe would be waited for, and a device may have no end.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise BadArrays("is not a regular file")
        raw = stream.read(most + 1)
    if len(raw) > most:
        raise BadArrays(f"has more than {most} bytes, and what {NAME} lists takes less")
    return raw


def _kept(
    listed: Iterable[tuple[str, OutputModel, tuple[int, ...]]],
    stored: Mapping[str, tuple[str, Array]],
    path: Path,
    restore: str,
) -> Iterator[tuple[str, Kept]]:
    """What the manifest lists, with what the arrays hold."""
    for name, output, held in listed:
        if name not in stored:
            raise BaselineError(f"{path}: {name}: is missing, and {NAME} lists it; {restore}")
        dtype, values = stored[name]
        if (dtype, values.shape) != (output.dtype, held):
            got = f"is {dtype} of shape {list(values.shape)}"
            raise BaselineError(f"{path}: {name}: {got}, and {NAME} has {output.dtype} of {list(held)}; {restore}")
        yield name, Kept(dtype, tuple(output.shape), values, output.sha256)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Have a folder for oneself, from before a recording until it is written; BaselineError while another has it.

    The folder is made where there is none, and goes again when nothing was written into it.
    """
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        taken = _taken(folder)
    except OSError as error:
        raise BaselineError(f"{folder}: cannot be written: {error.strerror}") from error
    with taken:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                for path in made:
                    path.rmdir()


def _taken(folder: Path) -> contextlib.ExitStack:
    """A folder that is locked until what is returned is closed.

    The lock lies on the folder itself: it leaves no file behind, and the system takes it back from whoever dies.
    """
    # Another process, which made the folder and has nothing to write, takes it away at any moment: before it is opened,
    # and also while it is made, where it was there already and then is not.
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            return _taken_at_once(folder)
    return _taken_at_once(folder)


def _taken_at_once(folder: Path) -> contextlib.ExitStack:
    """A folder that is locked; FileNotFoundError and FileExistsError where it came or went meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        handle = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, handle)
        _lock(handle, folder)
        if not os.path.samestat(os.fstat(handle), folder.stat()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        return stack.pop_all()


def _lock(handle: int, folder: Path) -> None:
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


def save(folder: Path, baseline: Baseline) -> Path:
    """Write a baseline in the place of what the folder holds; the file of its arrays.

    BaselineError where the folder holds something else, or cannot be written.
    """
    try:
        if folder.is_dir() and not (folder / NAME).exists() and any(map(_is_foreign, folder.iterdir())):
            raise BaselineError(f"{folder}: holds other files and no {NAME}; name a folder that is empty or new")
        folder.mkdir(parents=True, exist_ok=True)
        arrays = baseline.arrays
        content = content_digest(arrays)
        path = folder / _name(content)
        _put(path, written(arrays))
        _put(folder / NAME, manifest_text(baseline, path.name, content).encode())
        for other in folder.iterdir():
            if other != path and (other.match("arrays-*.safetensors") or other.name.startswith(_UNFINISHED)):
                other.unlink(missing_ok=True)
    except OSError as error:
        raise BaselineError(f"{folder}: cannot be written: {error.strerror}") from error
    return path


def _name(content: str) -> str:
    """Return the name of the file of arrays with that digest."""
    return f"arrays-{content[:16]}.safetensors"


def _is_foreign(path: Path) -> bool:
    """Whether a file is not what an interrupted recording leaves."""
    return not (path.match("arrays-*.safetensors") or path.name.startswith(_UNFINISHED))


def _put(path: Path, content: bytes) -> None:
    """Put a file in its place, all of it at once, and both it and its place on disk."""
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
