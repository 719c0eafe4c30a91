"""goldformer schema: the JSON Schema of a kind of file."""

from __future__ import annotations

import click

from goldformer.adapters.process import messages
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import OK, CannotRun, say
from goldformer.conformance.grading.assignment import AssignmentFile
from goldformer.conformance.reports import record_json
from goldformer.spec import ROOT
from goldformer.spec.making.schemas import SCHEMAS, render_schema, write_schemas

_MAKERS = {
    **{kind: model.model_json_schema for kind, model in SCHEMAS.items()},
    "assignment": AssignmentFile.model_json_schema,
    "protocol": messages.json_schema,
    "report": record_json.json_schema,
}


@click.command(epilog=options.list_statuses())
@click.argument("kind", type=click.Choice(sorted(_MAKERS)), required=False)
@click.option(
    "--write", is_flag=True, help="Write the schemas of the spec's files into spec/schemas, and print nothing."
)
def schema(kind: str | None, *, write: bool) -> int:
    """Print the JSON Schema of a kind of file.

    Editors check files by it. `protocol` is the schema of the protocol's messages, `report` that of --json.
    """
    if write == (kind is not None):
        raise CannotRun("name one kind of file, or give --write and no kind")
    if kind is not None:
        click.echo(render_schema(_MAKERS[kind]()), nl=False)
        return OK
    changed = write_schemas(ROOT)
    for path in changed:
        say(f"wrote {path}")
    if not changed:
        say("nothing changed")
    return OK
