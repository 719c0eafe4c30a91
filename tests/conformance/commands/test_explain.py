"""goldformer explain and schema: no id stands for two things, and schemas refuse unknown keys."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.spec.making.schemas import SCHEMAS


def test_no_id_stands_for_two_things_and_some_of_every_kind_are_explained(spec):
    rows = {row.id: row for document in spec.documents.values() for row in document.rows}
    kinds = {
        "document": spec.documents, "row": rows, "clause": spec.clauses, "convention": spec.conventions,
        "family": spec.families, "property": spec.properties, "mistake": spec.mistakes, "erratum": spec.errata,
        "component": spec.contracts, "case": spec.cases,
    }  # fmt: skip
    ids = [*chain(*kinds.values())]
    assert len(set(ids)) == len(ids)
    for kind, entries in kinds.items():
        for id_ in [*entries][:: max(1, len(entries) // 4)]:
            result = CliRunner().invoke(main, ["explain", id_])
            assert result.stdout.startswith(f"{kind}: {id_}\n"), result.output


@pytest.mark.parametrize("kind", [*SCHEMAS, "assignment"])
def test_every_kind_of_file_has_a_json_schema_that_refuses_unknown_keys(kind):
    schema = json.loads(CliRunner().invoke(main, ["schema", kind]).stdout)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert set(schema.get("required", ())) <= set(schema["properties"])
    assert all(part.get("additionalProperties") is not True for part in schema.get("$defs", {}).values())
