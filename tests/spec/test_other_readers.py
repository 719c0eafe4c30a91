"""Readers of YAML 1.2 and of JSON Schema accept every file of the spec, and read what goldformer reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import jsonschema
import pytest
import yaml
from ruamel.yaml import YAML

from goldformer.spec import ROOT
from goldformer.spec.making.schemas import SCHEMAS, locate_schema
from goldformer.spec.yamlfile import YamlFile

#: Each kind of file by its folder or its name.
KINDS = {"cases": "cases", "contracts": "contract", "golden": "golden"}
DATA = sorted([*ROOT.glob("*.yaml"), *ROOT.glob("*/*.yaml"), *ROOT.glob("*.json"), *ROOT.glob("golden/*.json")])
YAML_FILES = [path for path in DATA if path.suffix == ".yaml"]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def find_shallow_lines(text: str) -> Iterator[int]:
    """The lines of lists and mappings in brackets that are not indented more than the key that they belong to.

    YAML 1.1 allows them, and strict readers of 1.2 refuse them.
    """
    lines = text.splitlines()
    starts: list[int] = []
    for token in yaml.scan(text):
        opens = isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken)
        closes = isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken)
        line = token.start_mark.line
        if starts and line > starts[0]:
            first = lines[starts[0]]
            # "- {" belongs to the hyphen, and "- key: {" to the key.
            markers = " " if first.lstrip(" -")[0] in "[{" else " -"
            if len(lines[line]) - len(lines[line].lstrip()) <= len(first) - len(first.lstrip(markers)):
                yield line + 1
        if opens:
            starts.append(line)
        elif closes:
            starts.pop()


def test_there_is_enough_to_read():
    assert len(YAML_FILES) > 60
    assert len(DATA) > 90


@pytest.mark.sample(20)
@pytest.mark.parametrize("path", YAML_FILES, ids=name)
def test_yaml_1_2_reads_the_same(path: Path):
    text = path.read_text(encoding="utf-8")
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 2)
    assert reader.load(StringIO(text)) == YamlFile.read(path).data
    assert not list(find_shallow_lines(text))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a:\n  b: [1,\n  2]\n", [3]),
        ("a:\n  b: [\n    1\n  ]\n", [4]),
        ("a:\n  - b: [\n    1]\n", [3]),
        ("a:\n  - {b: 1,\n    c: 2}\n", []),
        ("a:\n  b: [\n    1, [2,\n    3]\n    ]\n", []),
    ],
)
def test_shallow_brackets_are_found(text: str, lines: list[int]):
    assert sorted(set(find_shallow_lines(text))) == lines


def test_a_number_without_quotes_is_read_differently():
    """The reason for the comparison: 1e-5 is text in YAML 1.1 and a number in YAML 1.2."""
    assert yaml.safe_load("1e-5") == "1e-5"
    assert YAML(typ="safe", pure=True).load("1e-5") == 1e-5


@pytest.mark.sample(30)
@pytest.mark.parametrize("path", DATA, ids=name)
def test_the_schemas_accept_every_file(path: Path):
    kind = KINDS.get(path.parent.name, path.stem)
    schema = json.loads(locate_schema(ROOT, kind).read_text(encoding="utf-8"))
    data = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else YamlFile.read(path).data
    jsonschema.Draft202012Validator(schema).validate(data)


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_the_stored_schemas_are_those_in_force(kind: str):
    stored = json.loads(locate_schema(ROOT, kind).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(stored)
    assert stored == SCHEMAS[kind].model_json_schema(), "run goldformer schema --write"


def test_a_schema_refuses_a_wrong_file():
    schema = json.loads(locate_schema(ROOT, "golden").read_text(encoding="utf-8"))
    data = json.loads((ROOT / "golden/softmax.json").read_text(encoding="utf-8"))
    for spoilt in (data | {"version": 1.1}, data | {"more": 1}, {"cases": data["cases"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate(spoilt)
