"""Baselines in folders: read whole or refused, and written so that an interruption leaves the old one as it was.

Each component has a file of arrays, and the manifest lists the digest of each. A file that changes is first written
under another name, with its digest in it. Then the manifest, which lists the new digests, is replaced in one step. Then
the new files replace the old ones. A reader takes the file with the other name, if there is one with the digest that it
looks for. Each step is on disk before the next begins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from goldformer.conformance.baseline.array_files import (
    HEADER_AT_MOST,
    BadArrays,
    StoredArray,
    draw_places,
    from_bytes,
    measure_size,
    to_bytes,
)
from goldformer.conformance.baseline.manifest import (
    AGAIN,
    NAME,
    ListedOutput,
    Manifest,
    digest_manifest,
    make_baseline,
    read_manifest,
    write_manifest,
)
from goldformer.conformance.baseline.model import Baseline, BaselineError, name_array
from goldformer.spec.files import read_regular_file

#: The prefix of files that are not complete yet.
_UNFINISHED: Final = ".unfinished-"
#: The prefix of complete files that replace older ones as soon as the manifest lists them.
_NEXT: Final = ".next-"
_SUFFIX: Final = ".safetensors"
#: The file that tells git how to compare files of arrays.
_ATTRIBUTES: Final = ".gitattributes"
#: The number of attempts to lock a folder that other processes make and remove.
_ATTEMPTS: Final = 1000


def load(folder: Path) -> Baseline:
    """Read the baseline in a folder; BaselineError names the file and the field that is wrong, and says what to do."""
    manifest = read_manifest(folder)
    arrays: dict[str, StoredArray] = {}
    try:
        for component in manifest.files:
            arrays |= _read_component(folder, component, manifest)
    except BaselineError:
        # A recording that ended in the meantime replaced the files that the old manifest lists.
        if read_manifest(folder).digest != manifest.digest:
            return load(folder)
        raise
    if (digest := digest_manifest(manifest)) != manifest.digest:
        raise BaselineError(
            f"{folder / NAME}: digest: is {manifest.digest[:16]}…, and the file has {digest[:16]}…: a field was "
            f"changed after it was recorded; restore the file, or {AGAIN} {folder}"
        )
    return make_baseline(manifest, arrays)


def _read_component(folder: Path, component: str, manifest: Manifest) -> dict[str, StoredArray]:
    """Return the arrays of one component by name; BaselineError if they are not those of the manifest."""
    path, restore = folder / _name_file(component), f"restore the file, or {AGAIN} {folder}"
    listed = list(_list_arrays(manifest, component))
    most = HEADER_AT_MOST + sum(measure_size(output.dtype, shape) for _, output, shape in listed)
    try:
        raw = _read_file(folder, component, manifest.files[component], most)
        found = from_bytes(raw)
    except FileNotFoundError:
        raise BaselineError(f"{path}: is missing, and {folder / NAME} lists it under files; {restore}") from None
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
    digest, expected = _digest(raw), manifest.files[component]
    if digest != expected:
        raise BaselineError(
            f"{path}: its numbers were changed: {NAME} lists the digest {expected[:16]}…, and the file has "
            f"{digest[:16]}…; {restore}"
        )
    return arrays


def _read_file(folder: Path, component: str, digest: str, most: int) -> bytes:
    """Return the file of a component, which has another name if a recording was killed before its last step."""
    with contextlib.suppress(FileNotFoundError):
        return read_regular_file(folder / _name_next(component, digest), most)
    return read_regular_file(folder / _name_file(component), most)


def _list_arrays(manifest: Manifest, component: str) -> Iterator[tuple[str, ListedOutput, tuple[int, ...]]]:
    """Yield the arrays of a component, each with its name and its shape in the file."""
    for result in manifest.results:
        for name, output in result.outputs.items() if result.component == component else ():
            shape = tuple(output.shape)
            yield name_array(result.key, name), output, draw_places(shape).shape if output.sha256 is not None else shape


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


def save(folder: Path, baseline: Baseline) -> list[Path]:
    """Replace the baseline of a folder, and return the files of arrays that changed.

    BaselineError if the folder holds other files, or cannot be written.
    """
    try:
        if folder.is_dir() and not (folder / NAME).exists() and any(map(_is_foreign, folder.iterdir())):
            raise BaselineError(f"{folder}: holds other files and no {NAME}; name a folder that is empty or new")
        if (folder / NAME).is_file() and b"goldformer" not in (folder / NAME).read_bytes():
            raise BaselineError(f"{folder / NAME}: is no baseline; name a folder that is empty or new")
        folder.mkdir(parents=True, exist_ok=True)
        return _save(folder, baseline)
    except OSError as error:
        raise BaselineError(f"{folder}: cannot be written: {error.strerror}") from error


def _save(folder: Path, baseline: Baseline) -> list[Path]:
    files = {component: to_bytes(arrays) for component, arrays in baseline.arrays.items()}
    digests = {component: _digest(raw) for component, raw in files.items()}
    gone = _list_files(folder).keys() - files.keys()
    changed = [name for name, raw in files.items() if not _is_file_of(folder / _name_file(name), raw)]
    try:
        for component in changed:
            _replace(folder / _name_next(component, digests[component]), files[component])
        _sync(folder)
        _replace(folder / NAME, write_manifest(baseline, digests).encode())
    except BaseException:
        # The manifest of a recording that was killed may list a file that has its other name still.
        _remove_left_overs(folder, {_name_next(*listed) for listed in _list_files(folder).items()})
        raise
    _sync(folder)
    for component in changed:
        (folder / _name_next(component, digests[component])).replace(folder / _name_file(component))
    for component in gone:
        (folder / _name_file(component)).unlink(missing_ok=True)
    _remove_left_overs(folder)
    for path in folder.glob(f"arrays-*{_SUFFIX}"):  # of format 2
        path.unlink()
    _sync(folder)
    return [folder / _name_file(component) for component in changed]


def _list_files(folder: Path) -> dict[str, str]:
    """Return the components of the baseline in a folder with their digests; none if its manifest cannot be read."""
    try:
        return read_manifest(folder).files
    except BaselineError:
        return {}


def _remove_left_overs(folder: Path, but: Collection[str] = ()) -> None:
    """Remove what interrupted recordings left."""
    for path in folder.iterdir():
        if _is_left_over(path) and path.name not in but:
            path.unlink(missing_ok=True)


def _name_file(component: str) -> str:
    """Return the name of a component's file of arrays."""
    return f"{component}{_SUFFIX}"


def _name_next(component: str, digest: str) -> str:
    """Return the name of a file of arrays before it replaces the older one."""
    return f"{_NEXT}{component}-{digest[:16]}{_SUFFIX}"


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _is_file_of(path: Path, raw: bytes) -> bool:
    """Return True if a file has this content."""
    try:
        return read_regular_file(path, len(raw)) == raw
    except OSError:
        return False


def _is_left_over(path: Path) -> bool:
    """Return True if an interrupted recording left a file."""
    return path.name.startswith((_UNFINISHED, _NEXT))


def _is_foreign(path: Path) -> bool:
    """Return True if a file cannot come from an interrupted recording."""
    return not (_is_left_over(path) or path.name == _ATTRIBUTES)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file in one step, after its content is on disk."""
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


def _sync(folder: Path) -> None:
    """Wait until the names of a folder are on disk."""
    # Not every system opens folders.
    with contextlib.suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
