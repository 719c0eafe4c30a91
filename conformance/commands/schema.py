"""goldformer schema: the JSON Schema of a kind of file."""

from __future__ import annotations

import json

import click

from goldformer.adapters.process import messages
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import OK
from goldformer.conformance.grading.adjustments import AdjustmentsFile
from goldformer.conformance.grading.assignment import AssignmentFile
from goldformer.conformance.reports import report_schema
from goldformer.spec.case_schema import FILES

_SCHEMAS = {
    **{kind: model.model_json_schema for kind, model in FILES.items()},
    "adjustments": AdjustmentsFile.model_json_schema,
    "assignment": AssignmentFile.model_json_schema,
    "protocol": messages.json_schema,
    "report": report_schema.json_schema,
}


@click.command(epilog=options.list_statuses())
@click.argument("kind", type=click.Choice(sorted(_SCHEMAS)))
def schema(kind: str) -> int:
    """Print the JSON Schema of a kind of file.

    Editors check files by it. `protocol` is the schema of the protocol's messages, `report` that of check --json.
    """
    click.echo(json.dumps(_SCHEMAS[kind](), indent=2, ensure_ascii=False))
    return OK
