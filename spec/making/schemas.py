"""The JSON Schemas of the spec's files, which schemas/ holds for readers that have no Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from goldformer.spec.case_schema import CasesFile
from goldformer.spec.contractfile import ContractFile
from goldformer.spec.edition import VersionFile
from goldformer.spec.files import replace_file
from goldformer.spec.goldenfile import GoldenFileModel
from goldformer.spec.making.edges import EdgesFile
from goldformer.spec.making.exported import CallsFile
from goldformer.spec.making.promises import IdsFile
from goldformer.spec.scope import ScopeFile
from goldformer.spec.strict import StrictModel
from goldformer.spec.tables import (
    ConventionsFile,
    DocumentsFile,
    ErrataFile,
    FamiliesFile,
    MistakesFile,
    PropertiesFile,
)

#: The models of the files of the spec, and of those that `goldformer export` writes, by the names of their kinds.
SCHEMAS: Final[Mapping[str, type[StrictModel]]] = {
    "calls": CallsFile,
    "cases": CasesFile,
    "contract": ContractFile,
    "conventions": ConventionsFile,
    "documents": DocumentsFile,
    "edges": EdgesFile,
    "errata": ErrataFile,
    "families": FamiliesFile,
    "golden": GoldenFileModel,
    "ids": IdsFile,
    "mistakes": MistakesFile,
    "out_of_scope": ScopeFile,
    "properties": PropertiesFile,
    "version": VersionFile,
}


def locate_schema(root: Path, kind: str) -> Path:
    """Return the file of the schema of a kind of file."""
    return root / "schemas" / f"{kind}.schema.json"


def render_schema(schema: Mapping[str, Any]) -> str:
    """Return the text of a JSON Schema."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(root: Path) -> list[Path]:
    """Write all schemas into the folder schemas/ of a spec; return the files that changed."""
    changed = []
    for kind, model in SCHEMAS.items():
        path, text = locate_schema(root, kind), render_schema(model.model_json_schema())
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            replace_file(path, text)
            changed.append(path)
    return changed
