"""Writing of files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a temporary file in the same folder and move it into place, so that a reader never sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
        Path(name).chmod(path.stat().st_mode if path.exists() else 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
