"""The promises of the spec to its readers: a digest of cases and golden values, and ids that stay.

version.json and the heads of golden files say what the files next to them are, and ids.json lists the ids of the last
release. `goldformer lint` compares them with the files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from goldformer.spec.edition import (
    ComponentStamp,
    EditionEntry,
    VersionFile,
    digest_data,
    locate_version_file,
    read_version_file,
)
from goldformer.spec.errors import Problem
from goldformer.spec.files import replace_file
from goldformer.spec.goldenfile import read_entries, read_header, write_golden_file
from goldformer.spec.load import Spec
from goldformer.spec.strict import ClauseId, Id, StrictModel, Text
from goldformer.spec.yamlfile import YamlFile

#: The fields of a case that decide no verdict: what it is called, where it is from, which mistakes it shows.
_DECIDE_NOTHING: Final = frozenset({"title", "source", "meant_for", "printed", "equal_sizes", "blind"})
_REMEDY: Final = "run goldformer coverage --write"


class IdsFile(StrictModel):
    """The schema of ids.json: the ids of the last release, and the reason for each that was withdrawn since the first.

    None of them is ever given to another thing, and none goes without a word. An option stands under the name of its
    convention, as "empty_row: zeros".
    """

    clauses: list[ClauseId] = []
    cases: list[Id] = []
    properties: list[Id] = []
    mistakes: list[Id] = []
    options: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*: [a-z0-9][a-z0-9_.-]*$")]] = []
    withdrawn: dict[str, Text] = {}


# ── version.json ──


def stamp_components(spec: Spec) -> dict[str, ComponentStamp]:
    """Return the number and the digest of the cases of each component as its files stand now."""
    stamps = {}
    for name in sorted(spec.contracts):
        path = spec.root / "cases" / f"{name}.yaml"
        if not path.exists():
            continue
        cases = YamlFile.read(path).data["cases"]
        golden = read_entries(_locate_golden(spec.root, name))
        data = {
            "contract": YamlFile.read(spec.root / "contracts" / f"{name}.yaml").data,
            "cases": [{key: value for key, value in case.items() if key not in _DECIDE_NOTHING} for case in cases],
            "golden": {id_: {k: v for k, v in entry.items() if k != "kills"} for id_, entry in golden.items()},
        }
        stamps[name] = ComponentStamp(cases=len(cases), digest=digest_data(data))
    return stamps


def write_stamps(spec: Spec) -> list[Path]:
    """Write version.json, and the version into each golden file; return the files that changed."""
    file = read_version_file(spec.root)
    stale = _list_stale_heads(spec)
    for path in stale:
        write_golden_file(path, spec.edition_of(path.stem), path.stem, read_entries(path))
    fresh = _renew(file, spec)
    if fresh == file:
        return stale
    path = locate_version_file(spec.root)
    replace_file(path, _render(fresh.model_dump()))
    return [*stale, path]


def list_stale_stamps(spec: Spec) -> Iterator[Problem]:
    """Yield the components whose digest in version.json, or the version in whose golden file, is out of date."""
    path, file = locate_version_file(spec.root), read_version_file(spec.root)
    for edition, entry in _renew(file, spec).editions.items():
        fresh, stored = entry.components, file.editions[edition].components
        for name in sorted(fresh.keys() | stored.keys()):
            if stored.get(name) != fresh.get(name):
                line = YamlFile.read(path).line(("editions", edition, "components", name))
                message = f"is not what cases/{name}.yaml and its golden values are now: {_REMEDY}"
                yield Problem(path, line, name, message)
    for golden in _list_stale_heads(spec):
        now = spec.edition_of(golden.stem)
        message = f"is not {now.edition}/{now.version} of version.json: {_REMEDY}"
        yield Problem(golden, 1, "version", message)


def _renew(file: VersionFile, spec: Spec) -> VersionFile:
    """Return version.json with the components of each edition as their files stand now."""
    stamps = stamp_components(spec)
    return VersionFile(
        editions={
            edition: EditionEntry(
                version=entry.version,
                text=entry.text,
                components={name: stamp for name, stamp in stamps.items() if spec.contracts[name].edition == edition},
            )
            for edition, entry in file.editions.items()
        }
    )


def _list_stale_heads(spec: Spec) -> list[Path]:
    """List the golden files that are of another edition or version than their component."""
    paths = [path for path in sorted((spec.root / "golden").glob("*.json")) if path.stem in spec.contracts]
    now = {path: spec.edition_of(path.stem) for path in paths}
    return [path for path, edition in now.items() if read_header(path) != (edition.edition, edition.version)]


def _locate_golden(root: Path, component: str) -> Path:
    return root / "golden" / f"{component}.json"


# ── ids.json ──


def locate_ids(root: Path) -> Path:
    """Return the file of the promised ids."""
    return root / "ids.json"


def read_ids(root: Path) -> IdsFile:
    """Read the promised ids; nothing is promised if there is no file."""
    path = locate_ids(root)
    return YamlFile.read(path).parse(IdsFile) if path.exists() else IdsFile()


def collect_ids(spec: Spec) -> dict[str, list[str]]:
    """Return the ids of everything that has one, sorted, by kind; an option has that of its convention before it."""
    return {
        "clauses": sorted(spec.clauses, key=_split_number),
        "cases": sorted(spec.cases),
        "properties": sorted(spec.properties),
        "mistakes": sorted(spec.mistakes),
        "options": sorted(f"{name}: {option}" for name, c in spec.conventions.items() for option in c.options),
    }


def _split_number(clause: str) -> tuple[str, int]:
    letters, _, number = clause.partition("-")
    return letters, int(number)


def list_broken_promises(spec: Spec) -> Iterator[Problem]:
    """Yield the promised ids that are gone, and the withdrawn ones that are back."""
    promised, path = read_ids(spec.root), locate_ids(spec.root)
    current = collect_ids(spec)
    for kind, ids in current.items():
        for id_ in sorted(set(getattr(promised, kind)) - set(ids) - promised.withdrawn.keys()):
            message = (
                f"{id_!r} is gone, and a release has promised it: bring it back, or add it to `withdrawn` of ids.json "
                "with the reason"
            )
            yield Problem(path, 1, kind, message)
    every: Collection[str] = {id_ for ids in current.values() for id_ in ids}
    for id_ in sorted(promised.withdrawn.keys() & every):
        yield Problem(path, 1, "withdrawn", f"{id_!r} is in use: an id that was withdrawn is not given again")


def record_ids(spec: Spec) -> bool:
    """Add every id to ids.json, as a release does; False if all of them are there."""
    promised = read_ids(spec.root)
    kinds = {
        kind: sorted({*getattr(promised, kind), *ids} - promised.withdrawn.keys(), key=_sort_key(kind))
        for kind, ids in collect_ids(spec).items()
    }
    fresh = promised.model_copy(update=kinds)
    if fresh == promised:
        return False
    replace_file(locate_ids(spec.root), _render(fresh.model_dump()))
    return True


def _sort_key(kind: str) -> Any:
    return _split_number if kind == "clauses" else None


def _render(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
