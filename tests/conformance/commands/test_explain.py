"""goldformer explain and schema: every id there is, and every kind of file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.spec.schemas import SCHEMAS


def titles(spec):
    """Every id of the spec: what it is, and the words that must be shown for it."""
    rows = [(row.id, ("row", row.says)) for d in spec.documents.values() for row in d.rows]
    return [
        *((d.id, ("document", d.title)) for d in spec.documents.values()),
        *rows,
        *((c.id, ("clause", c.title)) for c in spec.clauses.values()),
        *((c.id, ("convention", c.title)) for c in spec.conventions.values()),
        *((f.id, ("family", f.title)) for f in spec.families.values()),
        *((p.id, ("property", p.title)) for p in spec.properties.values()),
        *((m.id, ("mistake", m.title)) for m in spec.mistakes.values()),
        *((e.id, ("erratum", e.why)) for e in spec.errata.values()),
        *((name, ("component", contract.title)) for name, contract in spec.contracts.items()),
        *((c.id, ("case", c.title)) for c in spec.cases.values()),
    ]


def explain(*arguments):
    return CliRunner().invoke(main, ["explain", *arguments])


def test_no_id_stands_for_two_things(spec):
    ids = [id_ for id_, _ in titles(spec)]
    assert sorted(set(ids)) == sorted(ids)


#: Ids that are explained in one test: every fortieth.
SLICES = 40


@pytest.mark.sample(1)
@pytest.mark.parametrize("start", range(SLICES))
def test_every_id_of_the_spec_is_explained(start, spec):
    known = titles(spec)[start::SLICES]
    assert {kind for _, (kind, _) in known} >= {"row", "clause", "property", "mistake", "case"}
    for id_, (kind, words) in known:
        result = explain(id_)
        assert (id_, result.exit_code) == (id_, 0)
        assert result.stdout.startswith(f"{kind}: {id_}\n")
        for line in words.strip().splitlines():
            assert line in result.stdout


def test_every_entry_is_json_too(spec):
    for id_ in (
        "walkthrough",
        "W1",
        "SDPA-2",
        "empty_row",
        "llama-3",
        "sm-shift",
        "scale-missing",
        "softmax",
        "sdpa-causal",
    ):
        entry = json.loads(explain(id_, "--json", "-").stdout)
        assert id_ in entry.values()


def test_a_clause_in_small_letters_is_found():
    assert explain("sdpa-2").stdout == explain("SDPA-2").stdout


@pytest.mark.parametrize(
    ("id_", "lines"),
    [
        ("SDPA-2", ["level: MUST", "sources: ", "shown by: "]),
        (
            "scale-missing",
            ["hint: Divide QKᵀ by √d_k before the softmax.", "caught by\n  scaled_dot_product_attention: "],
        ),
        ("nondeterminism", ["caught by\n  *: repeat-calls"]),
        ("mask-first-sample", ["  encoder: "]),
        ("mha-linear", ["component: multi_head_attention", "catches: qkv-relu, wo-relu, kv-swap"]),
        ("empty_row", ["clause: SDPA-7", "default: uniform", "  zeros: every weight is 0"]),
        ("sdpa-causal", ["clauses: SDPA-6, MASK-1, MASK-6", "source: java J2", "  mask: ", "expect", "  output"]),
        ("sdpa-widths-differ", ["must refuse: key", "base: sdpa-cross-lengths"]),
        ("sdpa-empty-row", ["  zeros: output", "  nan: weights"]),
        (
            "softmax",
            [
                "formula: softmax(s)_j = exp(s_j) / Σ_k exp(s_k), over the last axis",
                "call: softmax(scores) → output",
                '  ARRAYS = "torch"  # or "numpy", "jax"\n\n\n  def softmax(scores):\n      return my_softmax(scores)',
                "  scores: float (..., n)",
                "  output: float (..., n)",
                "clauses: CALL-6, NUM-1, SM-1, SM-2, ",
                "cases: sm-one-row-by-hand, ",
            ],
        ),
        ("multi_head_attention", ["  b_q: float (heads*d_k) (optional)", "  num_heads: int", "depends on: scaled_dot"]),
        ("sm-one-row-by-hand", ["  scores: 0.0, 1.0, 3.0", "written in: softmax.yaml:4"]),
    ],
)
def test_an_entry_says_what_one_wants_to_know(id_, lines):
    text = explain(id_).stdout
    for line in lines:
        assert f"\n{line}" in text


def test_a_mistake_is_explained_in_full(spec):
    mistake = spec.mistakes["fill-1e9-fp16"]
    lines = explain(mistake.id).stdout.splitlines()
    fields = ("component", "title", "does", "symptom", "why", "hint", "reveals", "hides", "error")
    assert all(getattr(mistake, name) for name in fields)
    assert lines[1:10] == [f"{name}: {getattr(mistake, name)}" for name in fields]
    assert lines[10:12] == ["seen", "  NVIDIA/apex#1105: https://github.com/NVIDIA/apex/issues/1105"]
    assert lines[10 + len(mistake.seen) + 1] == "caught by"


PLACES = {
    "owner/name#12": "https://github.com/owner/name/issues/12",
    "owner/name#12 (claimed)": "https://github.com/owner/name/issues/12",
    "owner/name:a/b.py (read)": "https://github.com/owner/name/blob/HEAD/a/b.py",
    "owner/name:c#/d.cs": "https://github.com/owner/name/blob/HEAD/c%23/d.cs",
    "owner/name": "https://github.com/owner/name",
}


@pytest.fixture
def noted(spec, monkeypatch):
    """Explain reads a spec in which one mistake was seen at PLACES, and one property says that it catches it."""
    mistake, prop = spec.mistakes["scale-missing"], spec.properties["sdpa-simplex"]
    changed = replace(
        spec,
        mistakes={**spec.mistakes, mistake.id: mistake.model_copy(update={"symptom": "", "seen": tuple(PLACES)})},
        properties={**spec.properties, prop.id: prop.model_copy(update={"catches": (mistake.id,)})},
    )
    monkeypatch.setattr("goldformer.conformance.commands.explain.load_spec", lambda: changed)
    return mistake.id


def test_every_place_has_its_address(noted):
    assert json.loads(explain(noted, "--json", "-").stdout)["seen"] == PLACES
    text = explain(noted).stdout
    for place, address in PLACES.items():
        assert f"\n  {place}: {address}\n" in text


def test_what_is_not_said_of_a_mistake_is_left_out(noted):
    assert "symptom" not in explain(noted).stdout


def test_properties_that_catch_a_mistake_are_listed_behind_the_cases(noted):
    caught = json.loads(explain(noted, "--json", "-").stdout)["caught by"]
    assert caught["scaled_dot_product_attention"][-2:] == ["sdpa-size-heads-of-80", "sdpa-simplex"]
    assert "sha-java-three-tokens" in caught["single_head_attention"]


@pytest.mark.parametrize(
    ("id_", "says"),
    [
        ("sofmax", "goldformer: no such id sofmax: did you mean softmax?\n"),
        ("SDPA-99", "goldformer: no such id SDPA-99: did you mean SDPA-9?\n"),
        ("zzzz", "goldformer: no such id zzzz: known are walkthrough, "),
    ],
)
def test_an_unknown_id_is_2_and_guessed(id_, says):
    result = explain(id_)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(says)


@pytest.mark.parametrize("kind", [*SCHEMAS, "assignment"])
def test_every_kind_of_file_has_a_json_schema_that_refuses_unknown_keys(kind):
    schema = json.loads(CliRunner().invoke(main, ["schema", kind]).stdout)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert set(schema.get("required", ())) <= set(schema["properties"])
    assert all(part.get("additionalProperties") is not True for part in schema.get("$defs", {}).values())


def test_an_unknown_kind_of_file_is_2_and_all_are_listed():
    result = CliRunner().invoke(main, ["schema", "nothing"])
    assert result.exit_code == 2
    for kind in SCHEMAS:
        assert f"'{kind}'" in result.stderr
