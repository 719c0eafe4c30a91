"""goldformer export: every case as a plain call, as JSON that any language reads."""

from __future__ import annotations

import json
from pathlib import Path

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import OK, expand_patterns, say
from goldformer.spec import ROOT, load_spec
from goldformer.spec.files import replace_file


@click.command(epilog=options.list_statuses())
@click.argument("folder", type=options.FOLDER)
@options.COMPONENTS
@options.SPEC
def export(*, folder: Path, components: tuple[str, ...], root: Path | None) -> int:
    """Write every case as a plain call.

    FOLDER gets a JSON file for each component: arguments as numbers, expected values with their tolerance in each
    dtype. A reader needs no YAML, no generator and no contract. `goldformer schema calls` prints the schema.
    """
    from goldformer.conformance.judging.export import export_component  # judging, which --help does not need
    from goldformer.spec.making.schemas import SCHEMAS, render_schema

    spec = load_spec((root or ROOT).resolve())
    components = expand_patterns(components, spec.components, "--component")
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for component in components or spec.components:
        data = export_component(component, spec)
        count += data["number_of_cases"]
        replace_file(folder / f"{component}.json", json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")
    replace_file(folder / "calls.schema.json", render_schema(SCHEMAS["calls"].model_json_schema()))
    say(f"wrote {count} cases of {len(components or spec.components)} components into {folder}")
    return OK
