"""Exported cases: the schema accepts them, they say what the cases say, and a reader in JavaScript agrees."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from goldformer.adapters import DTYPES
from goldformer.conformance.cli import main
from goldformer.conformance.judging.export import export_component
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.spec import ROOT, Spec, load_spec
from goldformer.spec.families import list_stored_options
from goldformer.spec.load import FEWEST_CASES
from goldformer.spec.making.schemas import locate_schema
from repository import REPOSITORY

READERS = REPOSITORY / "examples" / "readers"
READER, COMPONENTS = READERS / "read_calls.mjs", READERS / "components.mjs"
#: The components that the reader has.
READ = ("softmax", "layer_norm", "positional_encoding", "scaled_dot_product_attention")
#: The numbers of an array that the schema is asked about: it takes each by itself.
FEW = 20

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The exported cases of the components that the reader has."""
    target: Path = tmp_path_factory.mktemp("exported")
    result = CliRunner().invoke(main, ["export", str(target), "--component", ",".join(READ)])
    assert result.exit_code == 0, result.output
    return target


@pytest.fixture(scope="module")
def plain(folder, spec: Spec):
    """The exported calls by the ids of their cases."""
    files = [json.loads((folder / f"{component}.json").read_text(encoding="utf-8")) for component in READ]
    return {call["id"]: call for file in files for call in file["cases"]}


def shorten(data):
    """The same data with the first numbers of each array; that the others are numbers is seen here."""
    if isinstance(data, list):
        return [shorten(item) for item in data]
    if not isinstance(data, dict):
        return data
    values = data.get("values")
    if isinstance(values, list):
        assert {type(value) for value in values} <= {int, float, bool, str}
        return {**data, "values": values[:FEW]}
    return {key: shorten(value) for key, value in data.items()}


def run_reader(folder: Path, components: Path = COMPONENTS) -> subprocess.CompletedProcess[str]:
    words = ["node", str(READER), str(folder), str(components)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("component", load_spec().components)
def test_the_schema_accepts_every_exported_file(component: str, spec: Spec):
    schema = json.loads(locate_schema(ROOT, "calls").read_text(encoding="utf-8"))
    data = shorten(export_component(component, spec))
    jsonschema.Draft202012Validator(schema).validate(data)
    assert [call["id"] for call in data["cases"]] == [case.id for case in spec.cases_of(component)]
    assert data["number_of_cases"] == len(data["cases"])
    assert {key: data[key] for key in ("edition", "version", "digest")} == spec.edition_of(data["component"]).as_json()


def test_the_folder_has_its_schema(folder: Path):
    stored = locate_schema(ROOT, "calls").read_text(encoding="utf-8")
    assert (folder / "calls.schema.json").read_text(encoding="utf-8") == stored
    assert sorted(path.name for path in folder.iterdir()) == sorted(["calls.schema.json", *(f"{c}.json" for c in READ)])


def test_arguments_are_the_numbers_of_the_cases(plain, spec: Spec):
    for id_, call in plain.items():
        case = spec.cases[id_]
        arrays = {**case.input_arrays, **case.param_arrays}
        written = {**call["inputs"], **call["params"]}
        assert set(written) == set(arrays)
        for name, array in arrays.items():
            assert written[name]["shape"] == list(array.shape)
            assert written[name]["values"] == array.ravel().tolist()


def test_expectations_are_the_golden_values_under_each_option(plain, spec: Spec):
    compared = 0
    for id_, call in plain.items():
        case = spec.cases[id_]
        for chosen, expected in zip(list_stored_options(case, spec), call["expect"], strict=True):
            assert {name: expected["options"][name][0] for name in chosen} == chosen
            assert expected.get("refuses") == case.error
            for name, output in expected.get("outputs", {}).items():
                if case.shape_only or case.random:
                    continue
                golden = case.expects(chosen)[name]
                actual = [float(value) for value in output["values"]]
                np.testing.assert_array_equal(actual, golden.values.ravel())
                assert output.get("at") == (golden.indices and [list(place) for place in golden.indices])
                at_least = spec.contracts[case.component].computed_in_at_least
                for dtype, limit in output["tolerance"].items():
                    assert limit == tolerance(dtype, golden.error_scale, golden.magnitude, at_least)
                compared += 1
    assert compared > 300


def test_a_dtype_that_cannot_hold_a_case_has_no_tolerance(plain):
    dtypes = {tuple(o["tolerance"]) for c in plain.values() for e in c["expect"]
              for o in e.get("outputs", {}).values() if "tolerance" in o}  # fmt: skip
    assert DTYPES in dtypes
    assert any("float16" not in judged and "bfloat16" in judged for judged in dtypes)


def test_options_say_where_a_case_holds(spec: Spec):
    """A causal mask stays what it is where later tokens are always hidden; another mask would be another call."""
    calls = {call["id"]: call for call in export_component("scaled_dot_product_attention", spec)["cases"]}
    (causal,) = calls["sdpa-causal"]["expect"]
    assert causal["options"]["later_tokens"] == ["as_masked", "hidden_too", "hidden_only"]
    (free,) = calls["sdpa-walkthrough-3x2"]["expect"]
    assert free["options"]["later_tokens"] == ["as_masked"]


def test_every_expectation_fits_the_options_that_it_lists(spec: Spec):
    defaults = {name: convention.default for name, convention in spec.conventions.items()}
    for component in ("feed_forward", "transformer"):
        for call in export_component(component, spec)["cases"]:
            case = spec.cases[call["id"]]
            for expected in call["expect"]:
                assert all(expected["options"].values()), call["id"]
                chosen = {name: admitted[-1] for name, admitted in expected["options"].items()}
                assert case.explain_unfit(defaults | chosen) == "", call["id"]
                called = case.under(defaults | chosen)
                assert set(case.params) - set(called.params) == set(expected.get("without", ())), call["id"]


def test_a_model_of_full_size_has_recipes(spec: Spec):
    (call,) = [c for c in export_component("transformer", spec)["cases"] if spec.cases[c["id"]].full_size]
    recipes = {name: array["recipe"] for name, array in call["params"].items() if "recipe" in array}
    assert len(recipes) > 100
    assert all(recipe["name"] == name for name, recipe in recipes.items())
    assert all("values" in array for array in call["inputs"].values())


@needs_node
def test_a_reader_in_javascript_agrees_with_check_in_every_case(folder: Path, spec: Spec):
    result = run_reader(folder)
    assert (result.returncode, result.stderr) == (0, "")
    lines = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert set(lines) == set(READ)
    for component, said in lines.items():
        cases = spec.cases_of(component)
        assert f" {len(cases)} cases, " in said
        assert " 0 disagree, " in said
        assert spec.edition_of(component).digest in said


@needs_node
@pytest.mark.parametrize(
    ("right", "wrong", "component"),
    [
        ("Math.sqrt(variance + eps)", "Math.sqrt(variance + 10 * eps)", "layer_norm"),
        ("score / Math.sqrt(width)", "score / width", "scaled_dot_product_attention"),
        ("!mask || allows(i * keys + j)", "true", "scaled_dot_product_attention"),
        ("exponent = layout", "exponent = 1e-9 + layout", "positional_encoding"),
        ("Math.exp(score - largest)", "Math.exp(score)", "softmax"),
        ('demand(!scores.shape.includes(0), "scores");', "", "softmax"),
        ("value / (1 - rate)", "value", "positional_encoding"),
        ("dot(weights, gradient))", "0)", "softmax"),
    ],
)
def test_a_reader_finds_a_mistake_in_a_component(folder: Path, tmp_path: Path, right: str, wrong: str, component: str):
    source = COMPONENTS.read_text(encoding="utf-8")
    assert source.count(right) == 1
    spoilt = tmp_path / "spoilt.mjs"
    spoilt.write_text(source.replace(right, wrong), encoding="utf-8")
    # The other components keep no case: with all of them the reader takes seconds.
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in READ:
        exported = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        kept = exported if name == component else {**exported, "cases": []}
        (alone / f"{name}.json").write_text(json.dumps(kept), encoding="utf-8")
    result = run_reader(alone, spoilt)
    assert (result.returncode, result.stderr) == (1, "")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"{component}: ")]
    assert int(re.search(r" (\d+) disagree", line)[1]) > 0


def test_a_reader_of_eighty_lines_agrees_in_every_case_of_llama_3_and_gemma_2(tmp_path: Path, spec: Spec):
    reader = READER.with_name("llama.py")
    components = ("rms_norm", "decoder_only_layer", "decoder_only_model")
    for component in components:
        data = json.dumps(export_component(component, spec))
        (tmp_path / f"{component}.json").write_text(data, encoding="utf-8")
    words = [sys.executable, str(reader), str(tmp_path)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    found = [re.fullmatch(r"(\w+) of (\S+): (\d+) of \3 cases agree", line) for line in printed]
    judged = {(match[1], match[2]): int(match[3]) for match in found if match}
    assert [*judged] == [*product(components, ("llama-3", "gemma-2"))]
    assert min(judged.values()) >= FEWEST_CASES
    code = [line.strip() for line in reader.read_text(encoding="utf-8").splitlines()]
    assert len([line for line in code if line and not line.startswith(('"""', "import", "from"))]) <= 80
