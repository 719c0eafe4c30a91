"""Reads tests/refusals/spec.yaml, the table of what the loader of the spec refuses, and spoils a copy by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from repository import REPOSITORY
from spoiling import bring, edit, edit_golden, refusals

TABLE = REPOSITORY / "tests" / "refusals" / "spec.yaml"
#: Case files that load in milliseconds; an entry names others that it needs.
KEPT = ["causal_mask", "padding_mask", "softmax"]
#: Numbers of lines and of cases move with each new case.
MOVING = re.compile(r"(\[|lines? |\.(?:yaml|json|md):)\d+")


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it stands."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def read_table() -> list[dict[str, Any]]:
    """Return the entries of the table."""
    entries: list[dict[str, Any]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return entries


def write_table(entries: list[dict[str, Any]]) -> None:
    """Write the entries with what is said of each."""
    head = "# What is wrong in which file of the spec, and what is said; `python -m tests.refusals` writes `said`.\n"
    text = yaml.dump(entries, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    TABLE.write_text(head + text.replace("\n- what:", "\n\n- what:"), encoding="utf-8")


@contextmanager
def spoil(root: Path, entry: dict[str, Any]) -> Iterator[None]:
    """Make the changes of an entry in a copy of the spec, and take them back."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    try:
        for component in entry.get("with", ()):
            bring(root, component)
        for change in entry["changes"]:
            _make_change(root, change)
        yield
    finally:
        for path in [path for path in root.rglob("*") if path.is_file() and path not in before]:
            path.unlink()
        for path, content in before.items():
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)


def _make_change(root: Path, change: dict[str, Any]) -> None:
    path = root / change["file"]
    if "content" in change:
        path.write_bytes(change["content"].encode(change.get("encoding", "utf-8")))
    elif "rename" in change:
        path.rename(root / change["rename"])
    elif change.get("remove"):
        path.unlink()
    elif change.get("empty"):
        for file in path.iterdir():
            file.unlink()
    elif "at" in change and change["file"].startswith("golden/"):
        edit_golden(root, change["at"], change["old"], change["new"])
    else:
        edit(root, change["file"], change["old"], change["new"], change.get("at", ""))


def list_said(root: Path, entry: dict[str, Any]) -> list[dict[str, str]]:
    """Return what is said of a spoilt copy: file, the text of the line that is named, field and sentence."""
    found = []
    for refusal in refusals(root, underived=entry.get("underived", False)):
        file, number, message = refusal.split(":", 2)
        path = root / file
        lines = path.read_bytes().decode("utf-8", "replace").splitlines() if path.is_file() else []
        line = lines[int(number) - 1].strip()[:60] if int(number) <= len(lines) else ""
        found.append({"file": file, "line": line, "says": MOVING.sub(r"\1#", message.strip())})
    return found
