"""The public names of a room, imported when they are used: some of its modules are heavy, and most runs need few."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load_on_use(
    package: str, modules: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package that imports each public name on first use.

    `modules` has the names by module. AttributeError for any other name. Tab and help() list what is in `__all__`.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    def list_names() -> list[str]:
        return list(sys.modules[package].__all__)

    return load, list_names
