"""Where the repository and the helpers of its tests lie."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

SUPPORT = Path(__file__).resolve().parent
REPOSITORY = SUPPORT.parent.parent


def load_module(name: str, path: Path) -> ModuleType:
    """Return a file as a fresh module, which `import` does not know, so that a test may change it."""
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
