"""Spoils copies of the spec, and tells what the loader says of them."""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from goldformer.spec import ROOT, Spec, SpecError, load_spec
from goldformer.spec.yamlfile import YamlFile


def bring(root: Path, component: str) -> str:
    """The case file of a component, brought back with its golden file if it was left out."""
    file = f"cases/{component}.yaml"
    for name in (file, golden_file(component)):
        shutil.copy(ROOT / name, root / name)
    return file


def golden_file(component: str) -> str:
    """The golden file of a component."""
    return f"golden/{component}.json"


def keep(root: Path, components: list[str]) -> None:
    """Leave the cases of some components alone."""
    for path in (*(root / "cases").iterdir(), *(root / "golden").iterdir()):
        if path.stem not in components:
            path.unlink()


#: Parses a shipped file once for all tests.
_parse_shipped = functools.cache(YamlFile.read)


def load(root: Path, *, underived: bool = False) -> Spec:
    """Load all of it past the cache of load_spec, since a copy is loaded, spoilt and loaded again.

    A file of the copy that is as it was shipped is not parsed again, which takes longer than all else.
    """
    read = YamlFile.read

    def read_unless_shipped(path: Path) -> YamlFile:
        shipped = ROOT / path.relative_to(root)
        if path.is_file() and shipped.is_file() and path.read_bytes() == shipped.read_bytes():
            return replace(_parse_shipped(shipped), path=path)
        return read(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(YamlFile, "read", read_unless_shipped)
        return load_spec.__wrapped__(root, underived=underived, whole=True)


def edit(root: Path, file: str, old: str, new: str, id_: str = "") -> None:
    """Replace the first `old` behind the line of an id (or of the file)."""
    text = (root / file).read_text(encoding="utf-8")
    start = text.index(f"id: {id_}\n") if id_ else 0
    end = text.find("\n  - id: ", start) if id_ else len(text)
    place = text.index(old, start, end + 1 if end > 0 else len(text))
    (root / file).write_text(text[:place] + new + text[place + len(old) :], encoding="utf-8")


def edit_golden(root: Path, id_: str, old: str, new: str) -> str:
    """Replace the first `old` in the golden entry of a case; the file in which it stands."""
    for path in (root / "golden").iterdir():
        text = path.read_text(encoding="utf-8")
        if f'    "{id_}": {{\n' in text:
            place = text.index(old, text.index(f'    "{id_}": {{\n'), text.index("\n    }", text.index(f'"{id_}"')))
            path.write_text(text[:place] + new + text[place + len(old) :], encoding="utf-8")
            return f"golden/{path.name}"
    raise LookupError(id_)


def refusals(root: Path, *, underived: bool = False) -> list[str]:
    """Return the error of load_spec, without the folder in front."""
    with pytest.raises(SpecError, match=re.escape(str(root))) as error:
        load(root, underived=underived)
    assert str(error.value) == "\n".join(map(str, error.value.problems))
    return [str(problem).removeprefix(f"{root}/") for problem in error.value.problems]
