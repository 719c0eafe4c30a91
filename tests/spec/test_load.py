"""The loader refuses what is wrong, naming file, line and field: the shipped spec, spoilt in one place at a time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from goldformer.spec import load_spec
from goldformer.spec.case_schema import BOOLEANS
from spoiling import bring, edit, edit_golden, golden_line_of, index_of, keep, line_of, load, refusals

#: Case files that load in milliseconds; `bring` adds another one.
KEPT = ["causal_mask", "padding_mask", "softmax"]


@pytest.fixture
def copy(spec_copy: Path) -> Path:
    """A spec to be spoilt, with the case files that are quick to load."""
    keep(spec_copy, KEPT)
    return spec_copy


def test_the_copy_loads_as_it_is(copy: Path):
    assert {case.component for case in load(copy).cases.values()} == set(KEPT)


# ── one wrong thing in one case ──

STALE = "was changed after its golden values were derived: run goldformer derive"
SHAPE = "scores: {fill: 0, shape: [3, 2, 0]}"
GRID = "both must be whole, rising and at most 256 in size, so that bfloat16 holds every element"

#: What: component, case, the text and its replacement, the field, the message ({id} is the case's).
CASES = {
    # the schema
    "unknown key": ("softmax", "sm-four-axes", "    source:", "    colour: red\n    source:", "colour",
        "unknown key: known here are id, title, clauses, source, meant_for, sizes, equal_sizes, blind, attributes, "
        "inputs, params, cotangent, convention, only_with, base, change, expect, printed"),
    "unknown key in a recipe": (
        "softmax", "sm-four-axes", "dyadic, seed:", "dyadic, sed: 1, seed:", "inputs.scores.sed",
        "unknown key: did you mean seed?",
    ),
    "wrong type": (
        "softmax", "sm-four-axes", "[SM-1, SM-2]", "3", "clauses", "Input should be a valid list, got 3",
    ),
    "bool for a seed": (
        "softmax", "sm-four-axes", "seed: 12", "seed: true", "inputs.scores.seed",
        "Input should be a valid integer, got True",
    ),
    # YAML 1.1 reads these as text. A field of several types is one problem.
    "an exponent without a point": (
        "softmax", "sm-one-row-by-hand", "{values: [0, 1, 3]}", "{fill: 1e-6, shape: [3]}", "inputs.scores.fill",
        "Input should be a valid number or a valid integer, got '1e-6', which YAML reads as text: write 1.0e-6",
    ),
    "a number in quotes": (
        "softmax", "sm-one-row-by-hand", "{values: [0, 1, 3]}", "{fill: '0.5', shape: [3]}", "inputs.scores.fill",
        "Input should be a valid number or a valid integer, got '0.5', which YAML reads as text: "
        "write 0.5 without quotes",
    ),
    "an attribute with an exponent without a point": (
        "rotary_embedding", "rope-distinct-sizes", "base: 500", "base: 1e4", "attributes.base",
        "Input should be a valid integer or a valid boolean or a valid number or a valid list, got '1e4', which YAML "
        "reads as text: write 1.0e+4",
    ),
    # a fill makes floats
    "a fill of true": (
        "scaled_dot_product_attention", "sdpa-causal", "{causal: true, shape: [q_seq, kv_seq]}",
        "{fill: true}", "inputs.mask.fill",
        f"expected a number; write booleans as {BOOLEANS}, got True",
    ),
    "a fill of a mask": (
        "scaled_dot_product_attention", "sdpa-causal", "{causal: true, shape: [q_seq, kv_seq]}",
        "{fill: 1, shape: [5, 5]}", "inputs.mask",
        f"{{id}}: has fill: 1, which makes floats, but must hold booleans: write {BOOLEANS}",
    ),
    "more than three mistakes": (
        "softmax", "sm-four-axes", "[softmax-whole-array]", "[a, b, c, d]", "meant_for",
        "names 4 mistakes: keep at most 3, those that the case was designed to reveal, got ['a', 'b', 'c', 'd']",
    ),
    "golden values among what people write": (
        "softmax", "sm-four-axes", "    source:", "    golden: {}\n    source:", "golden",
        "unknown key: known here are id, title, clauses, source, meant_for, sizes, equal_sizes, blind, attributes, "
        "inputs, params, cotangent, convention, only_with, base, change, expect, printed",
    ),
    # conventions
    "unknown convention": (
        "causal_mask", "mask-causal-1x6", ": causal_corner", ": corner", "convention",
        "{id}: causal_mask depends on causal_corner, not on corner",
    ),
    "convention of a component without": (
        "softmax", "sm-four-axes", "    expect:", "    convention: empty_row\n    expect:", "convention",
        "{id}: softmax depends on none, not on empty_row",
    ),
    "unknown option": (
        "positional_encoding", "pe-odd-5", "pe_layout: interleaved", "pe_layout: woven", "only_with.pe_layout",
        "{id}: pe_layout: woven is not in conventions.yaml",
    ),
    "option of an unknown convention": (
        "positional_encoding", "pe-odd-5", "pe_layout: interleaved", "layout: interleaved", "only_with.layout",
        "{id}: layout: interleaved is not in conventions.yaml",
    ),
    # shapes and sizes
    "arrays that contradict the contract": (
        "scaled_dot_product_attention", "sdpa-java-three-tokens",
        "query: {values: [[1, 2], [0, 1], [3, 1]]}", "query: {values: [[1, 2, 3], [0, 1, 4], [3, 1, 5]]}", "inputs",
        "{id}: contradicts the contract: key has an axis of 2 where d_k = 3 by query",
    ),
    "an argument of another kind": (
        "scaled_dot_product_attention", "sdpa-mask-of-keys", "mask: {values: [", "mask: {fill: 1, shape: [5]} # ",
        "inputs.mask", f"{{id}}: has fill: 1, which makes floats, but must hold booleans: write {BOOLEANS}",
    ),
    "a size that the arrays contradict": (
        "softmax", "sm-one-row-by-hand", "n: 3}", "n: 4}", "sizes.n", "{id}: is 4, but the arrays give 3",
    ),
    "a missing size": (
        "softmax", "sm-four-axes", ", n: 7}", "}", "inputs.scores", "{id}: needs the size 'n': add it to sizes",
    ),
    "an unknown size": (
        "softmax", "sm-four-axes", "n: 7}", "n: 7, m: 3}", "sizes.m", "{id}: is no size of softmax, which has n",
    ),
    "a list of sizes": (
        "softmax", "sm-four-axes", "n: 7}", "n: [7]}", "sizes.n",
        "{id}: only `lead`, the axes that ... stands for, is a list",
    ),
    "an unknown argument": (
        "softmax", "sm-four-axes", "scores: {", "score: {", "inputs.score",
        "{id}: is not in the contract, which has scores",
    ),
    "a reason for what the case does not have": (
        "layer_norm", "ln-constant-rows", "to: [x, gamma]", "to: [x, gama]", "blind",
        "{id}: 'gama' is not among the case's arrays and outputs, nor a part of their names",
    ),
    "a reason for padding where no id is": (
        "layer_norm", "ln-constant-rows", "to: [x, gamma]", "to: [x, padding]", "blind",
        "{id}: 'padding' is not among the case's arrays and outputs, nor a part of their names",
    ),
    # recipes
    "a step off the grid": (
        "softmax", "sm-four-axes", "step: 1/64", "step: 1/60", "inputs.scores",
        "{id}: step 1/60 is not a power of two such as 1/32",
    ),
    "a range off the grid": (
        "softmax", "sm-four-axes", "range: [-2, 2]", "range: [-2, 4.5]", "inputs.scores",
        f"{{id}}: range [-2, 9/2] with step 1/64 has ends at -128 and 288 steps: {GRID}",
    ),
    "a step that is no number": (
        "softmax", "sm-four-axes", "step: 1/64", "step: small", "inputs.scores.step",
        "Value error, Invalid literal for Fraction: 'small', got 'small'",
    ),
    "rows of unequal length": (
        "softmax", "sm-one-element", "[[-8],", "[[-8, 9],", "inputs.scores",
        "{id}: has rows of unequal length",
    ),
    "words for numbers": (
        "softmax", "sm-one-row-by-hand", "[0, 1, 3]", "[zero, one, three]", "inputs.scores",
        "{id}: holds the text 'zero' where the contract says float",
    ),
    "an exponent that YAML reads as text": (
        "softmax", "sm-one-row-by-hand", "[0, 1, 3]", "[0, 1e5, 3]", "inputs.scores",
        "{id}: holds the text '1e5' where the contract says float, which YAML reads as text: write 1.0e+5",
    ),
    "numbers without a recipe": (
        "softmax", "sm-one-row-by-hand", "{values: [0, 1, 3]}", "[0, 1, 3]", "inputs.scores",
        "expected a mapping: write {values: …} around numbers, or {fill: …} or {draw: …}, got [0, 1, 3]",
    ),
    "decimals beside numbers with all bits": (
        "kl_divergence", "kl-every-bit", "0.125, 0.125]", "0.15, 0.1]", "inputs.target",
        "{id}: has decimals beside numbers drawn with all bits: write binary ones such as 0.25",
    ),
    "ends of numbers with all bits that are no power of two apart": (
        "softmax", "sm-every-bit", "[-2, 2]", "[-2, 1]", "inputs.scores",
        "{id}: range [-2, 1] has the width 3: write ends that are a power of two apart",
    ),
    "decimals for ids": (
        "padding_mask", "mask-padding-none", "[[3,", "[[3.5,", "inputs.ids",
        "{id}: holds float64 values where the contract says ids",
    ),
    "another number of lengths": (
        "scaled_dot_product_attention", "sdpa-empty-row-one-sample", "{lengths: [", "{lengths: [1, ",
        "inputs.mask", "{id}: has 4 lengths for a first axis of 3",
    ),
    "lengths for more samples than there are": (
        "cached_attention", "cache-left-padding", "lengths: [7, 5]", "lengths: [7, 5, 5]", "expect.output",
        "{id}: lengths [7, 5, 5] do not fit the shape (batch, kv_heads*group, seq, d_v) = (2, 12, 7, 6)",
    ),
    # expectations
    "an unknown output": (
        "softmax", "sm-four-axes", "{output: all}", "{weights: all}", "expect.weights",
        "{id}: is not among what can be asked for: output",
    ),
    "no expectation": (
        "softmax", "sm-four-axes", "{output: all}", "{}", "expect", "{id}: asks for nothing; softmax gives output",
    ),
    "a probe outside": (
        "positional_encoding", "pe-101-positions", "[0, 0, 0]", "[0, 101, 0]", "expect.output",
        "{id}: probe [0, 101, 0] lies outside the shape (1, 101, 8)",
    ),
    "printed digits of an output not compared whole": (
        "scaled_dot_product_attention", "sdpa-walkthrough-3x2", "weights: all", "weights: shape", "printed.weights",
        "{id}: needs expect: {weights: all}",
    ),
    # what golden values follow from
    "a changed input": ("softmax", "sm-one-row-by-hand", "[0, 1, 3]", "[0, 1, 2]", "id", f"{{id}}: {STALE}"),
    "a changed size": ("softmax", "sm-four-axes", "[2, 3, 4]", "[2, 4, 3]", "id", f"{{id}}: {STALE}"),
    "a changed mask": (
        "scaled_dot_product_attention", "sdpa-causal", "mask: {causal: true,", "mask: {causal: false,", "id",
        f"{{id}}: {STALE}",
    ),
    "another thing asked for": (
        "scaled_dot_product_attention", "sdpa-causal", "output: all, weights: all", "output: all, scores: all",
        "id", f"{{id}}: {STALE}",
    ),
    # error cases
    "a change that keeps the contract": (
        "softmax", "sm-no-elements", SHAPE, SHAPE.replace("0]", "4]"), "change",
        "{id}: keeps the contract, so nothing can be expected to refuse it",
    ),
    "the wrong argument blamed": (
        "causal_mask", "mask-causal-no-keys", "error: kv_seq", "error: q_seq", "expect.error",
        "{id}: is q_seq, but the contract is broken by: kv_seq is 0, less than 1",
    ),
    "an unknown base": (
        "softmax", "sm-no-elements", "base: sm-several-rows", "base: sm-many-rows", "base",
        "{id}: 'sm-many-rows' is no working case of this file",
    ),
    "an error case as base": (
        "causal_mask", "mask-causal-no-keys", "base: mask-causal-2x5", "base: mask-causal-no-queries", "base",
        "{id}: 'mask-causal-no-queries' is no working case of this file",
    ),
    "an error case without a change": (
        "softmax", "sm-no-elements", f"    change: {{inputs: {{{SHAPE}}}}}\n", "", "expect",
        "{id}: an error case needs `base`, a working case, and `change`, its one fault",
    ),
    "a working case with a base": (
        "softmax", "sm-four-axes", "    expect:", "    base: sm-several-rows\n    expect:", "base",
        "{id}: only an error case has a base and a change",
    ),
}  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize(("component", "id_", "old", "new", "field", "message"), CASES.values(), ids=CASES)
def test_a_spoilt_case_is_refused_at_its_line(copy: Path, component, id_, old, new, field, message):
    file = bring(copy, component)
    edit(copy, file, old, new, id_)
    keys = [] if field == "id" else field.split(".")
    line, index = line_of(copy, file, id_, *keys), index_of(copy, file, id_)
    expected = f"{file}:{line}: cases[{index}].{field}: {message.replace('{id}', id_)}"
    refused = refusals(copy)
    assert expected in refused
    # Error cases fall with their base; nothing else may.
    assert all("is no working case of this file" in text for text in refused if text != expected)


@pytest.mark.parametrize(
    ("id_", "old", "field", "message"),
    [
        ("sm-four-axes", "    title: Scores of several heads, four axes of different length\n", "title", "is missing"),
        (
            "sm-one-row-by-hand", "    inputs:\n      scores: {values: [0, 1, 3]}\n", "inputs",
            "sm-one-row-by-hand: contradicts the contract: scores is missing",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_refused_at_the_line_of_its_case(copy: Path, id_, old, field, message):
    edit(copy, "cases/softmax.yaml", old, "", id_)
    line, index = line_of(copy, "cases/softmax.yaml", id_), index_of(copy, "cases/softmax.yaml", id_)
    assert refusals(copy) == [f"cases/softmax.yaml:{line}: cases[{index}].{field}: {message}"]


def test_a_case_without_golden_values_is_refused_at_its_line(copy: Path):
    (copy / "golden/softmax.json").unlink()
    message = "sm-one-row-by-hand: has no golden values: run goldformer derive"
    assert refusals(copy)[0] == f"cases/softmax.yaml:4: cases[0].id: {message}"
    assert load(copy, underived=True).cases["sm-one-row-by-hand"].golden is None


#: What: case, the text of its entry and the replacement, the key at whose line it is refused, the message.
GOLDEN = {
    "a value too few": (
        "sm-one-row-by-hand", "[0.042010066134066051, ", "[", "",
        "output has shape (2,), the contract says (3,): run goldformer derive",
    ),
    "an output too many": (
        "sm-one-row-by-hand", '"output": {', '"w": {"error_scale": 1, "values": 1}, "output": {', "",
        "has outputs ['output', 'w'], the case asks for ['output']: run goldformer derive",
    ),
    "an option too few": (
        "pe-odd-5", '"refused": "refused",', "", "",
        "has values for ['extra_sine', 'zero'], the convention has ['extra_sine', 'refused', 'zero']: run "
        "goldformer derive",
    ),
    "values at other places": (
        "pe-20x512-drawn", '"at": [[0, 0, 191]', '"at": [[0, 0, 192]', "",
        "output is given at other places than the case asks for: run goldformer derive",
    ),
    "an unknown mistake": (
        "sm-four-axes", "softmax-whole-array", "softmax-hole-array", "",
        "kills 'softmax-hole-array', which is not in mistakes.yaml: run goldformer mistakes --matrix --write",
    ),
    "a value beyond float64": (
        "sm-one-row-by-hand", "[0.042010066134066051", "[1" + "0" * 400, "",
        "has a number beyond float64 or int64: run goldformer derive",
    ),
    "values that are a mapping": (
        "sm-one-row-by-hand", "[0.042010066134066051, 0.11419519938459448, 0.84379473448133947]", '{"a": 1}', "",
        "output holds {'a': 1} where only int and float can stand: run goldformer derive",
    ),
    "a value that is nothing": (
        "sm-one-row-by-hand", "[0.042010066134066051", "[null", "",
        "output holds None where only int and float can stand: run goldformer derive",
    ),
    "a value that is true": (
        "sm-one-row-by-hand", "[0.042010066134066051", "[true", "",
        "output holds True where only int and float can stand: run goldformer derive",
    ),
    "a value that is a word": (
        "sm-one-row-by-hand", "[0.042010066134066051", '["nan"', "",
        "output holds 'nan' where only int and float can stand: run goldformer derive",
    ),
    "a truth that is 0.5": (
        "mask-padding-none", "[true", "[0.5", "", "mask holds 0.5 where only bool can stand: run goldformer derive",
    ),
    "an ill-formed derivation": (
        "sm-one-row-by-hand", '"440635ba247026fa"', '"abc"', "derivation",
        "String should match pattern '^[0-9a-f]{16}$', got 'abc'",
    ),
    "an unknown key": ("sm-one-row-by-hand", '"peak"', '"peek": 1, "peak"', "peek", "unknown key: did you mean peak?"),
    "a key written twice": (
        "sm-one-row-by-hand", '"peak"', '"peak": 1, "peak"', "peak", "is written twice (first on line",
    ),
    "values without a derivation": (
        "sm-one-row-by-hand", '"derivation": "440635ba247026fa",', "", "",
        "Value error, golden values need derivation, peak and either outputs or options, got ",
    ),
}  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize(("id_", "old", "new", "key", "message"), GOLDEN.values(), ids=GOLDEN)
def test_a_spoilt_golden_entry_is_refused_at_its_line(copy: Path, id_, old, new, key, message):
    if id_.startswith("pe-"):
        bring(copy, "positional_encoding")
    file = edit_golden(copy, id_, old, new)
    [refusal] = refusals(copy)
    place, field, said = refusal.split(": ", 2)
    assert place == f"{file}:{golden_line_of(copy, file, id_, key)}"
    assert field.startswith(key if "twice" in message else f"cases.{id_}")
    assert said.startswith(message)


def test_golden_values_of_an_error_case_are_refused(copy: Path):
    entry = '"mask-causal-no-keys": {"derivation": "0123456789abcdef", "peak": 0, "outputs": {}},\n    '
    edit(copy, "golden/causal_mask.json", '"mask-causal-4": {', entry + '"mask-causal-4": {')
    message = "cases.mask-causal-no-keys: has golden values, but asks for no values: run goldformer derive"
    assert refusals(copy) == [f"golden/causal_mask.json:6: {message}"]


def test_a_golden_entry_without_a_case_is_refused(copy: Path):
    edit_golden(copy, "sm-four-axes", '"derivation"', '"kills": []\n    },\n    "sm-gone": {\n      "derivation"')
    file = "golden/softmax.json"
    line = golden_line_of(copy, file, "sm-gone")
    edit(copy, "cases/softmax.yaml", "{output: all}", "{output: shape}", "sm-four-axes")
    message = "'sm-gone' is no case of softmax.yaml: run goldformer derive"
    assert refusals(copy) == [f"{file}:{line}: cases.sm-gone: {message}"]


def test_a_golden_file_without_cases_is_refused(copy: Path):
    (copy / "golden/softmin.json").write_text("{}", encoding="utf-8")
    assert refusals(copy) == ["golden/softmin.json:1: file: belongs to cases/softmin.yaml, which is missing: remove it"]


def test_a_golden_file_of_another_component_is_refused(copy: Path):
    edit(copy, "golden/softmax.json", '"component": "softmax"', '"component": "softmin"')
    message = "is 'softmin' in the golden file of softmax: write softmax"
    assert refusals(copy) == [f"golden/softmax.json:4: component: {message}"]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("1.57", "1.57]", 11, "file: is not JSON: Expecting ',' delimiter"),
        ("0.042010066134066051", "NaN", 1, 'file: is not JSON: NaN is no JSON: write "NaN"'),
        (
            "1.57",
            "NaN",
            11,
            "cases.sm-one-row-by-hand.outputs.output.error_scale: Input should be a valid number, got 'NaN'",
        ),
    ],
)
def test_what_is_not_json_is_refused(copy: Path, old, new, line, message):
    file = edit_golden(copy, "sm-one-row-by-hand", old, new)
    assert refusals(copy) == [f"{file}:{line}: {message}"]


def test_golden_values_of_the_spec_do_not_stand_with_its_cases(copy: Path):
    path = copy / "cases/softmax.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "golden: {sm-four-axes: {kills: []}}\n", encoding="utf-8")
    line = line_of(copy, "cases/softmax.yaml", "", "golden")
    message = "stands in golden/softmax.json: take it out here, and run goldformer derive"
    assert refusals(copy) == [f"cases/softmax.yaml:{line}: golden: {message}"]


def test_an_id_taken_in_the_same_file_names_its_first_line(copy: Path):
    file = "cases/softmax.yaml"
    first, second = line_of(copy, file, "sm-one-element"), line_of(copy, file, "sm-shifted-pair")
    index = index_of(copy, file, "sm-shifted-pair")
    edit(copy, file, "id: sm-shifted-pair", "id: sm-one-element")
    message = f"sm-one-element: 'sm-one-element' is taken, see line {first}"
    assert refusals(copy) == [f"{file}:{second}: cases[{index}].id: {message}"]


def test_an_id_taken_in_another_file_names_it(copy: Path):
    first = line_of(copy, "cases/causal_mask.yaml", "mask-causal-4")
    second = line_of(copy, "cases/padding_mask.yaml", "mask-padding-none")
    edit(copy, "cases/padding_mask.yaml", "id: mask-padding-none", "id: mask-causal-4")
    message = f"'mask-causal-4' is taken, see causal_mask.yaml:{first}"
    assert refusals(copy, underived=True) == [f"cases/padding_mask.yaml:{second}: id: {message}"]


REFERENCES = {
    "clause": ("[SM-1, SM-2]", "[SM-1, SM-99]", "clauses", "SM-99 is no clause of transformer.md or decoder_only.md"),
    "mistake": (
        "    sizes:", "    meant_for: [scale-mising]\n    sizes:", "meant_for",
        "'scale-mising' is not in mistakes.yaml",
    ),
    "document row": ("rows: [J1]", "rows: [J9]", "source", "cites rows ['J9'] of java, which has J1, J2, J3, J4"),
    "document": (
        "document: java", "document: jav", "source",
        f"cites 'jav', which documents.yaml does not have: it has {', '.join(load_spec().documents)}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "field", "message"), REFERENCES.values(), ids=REFERENCES)
def test_an_unknown_reference_is_refused_with_what_is_known(copy: Path, old, new, field, message):
    edit(copy, "cases/softmax.yaml", old, new, "sm-one-row-by-hand")
    [refusal] = refusals(copy)
    assert refusal.startswith("cases/softmax.yaml:")
    assert refusal.split(": ", 1)[1] == f"sm-one-row-by-hand.{field}: {message}"


def test_an_erratum_of_an_unknown_mistake_is_refused(copy: Path):
    edit(copy, "errata.yaml", "mistakes: [scale-no-root]", "mistakes: [scale-no-rot]", "primer-scaled-scores")
    [refusal] = refusals(copy)
    assert refusal.startswith("errata.yaml:")
    assert refusal.endswith("mistakes: 'scale-no-rot' is not in mistakes.yaml")


# These were once refused at the line of the case's id, whatever field was named.
@pytest.mark.parametrize(("old", "new", "field", "message"), REFERENCES.values(), ids=REFERENCES)
def test_an_unknown_reference_is_refused_at_its_line(copy: Path, old, new, field, message):
    edit(copy, "cases/softmax.yaml", old, new, "sm-one-row-by-hand")
    line = line_of(copy, "cases/softmax.yaml", "sm-one-row-by-hand", field)
    assert refusals(copy)[0].split(":")[1] == str(line)


def test_an_array_can_be_drawn_only_like_another_of_the_case(copy: Path):
    file = bring(copy, "multi_head_attention")
    edit(copy, file, "like: query}", "like: mask}", "mha-self")
    assert "key: mha-self: is drawn like mask, which is not among query, key, value" in refusals(copy)[0]


# ── one recipe for all parameters but some ──

DECODED = "greedy-ends-at-step-2"
BUT = "but: {w_vocab: {draw: dyadic, seed: 10645, range: [-2, 2], step: 1/16}}"


def test_parameters_under_but_have_recipes_of_their_own(copy: Path):
    file, name = bring(copy, "greedy_decode"), "decoder.0.norm_1.gamma"
    plain = load(copy).cases[DECODED].param_arrays
    edit(copy, file, BUT, BUT[:-1] + f", {name}: {{fill: 1}}, b_vocab: {{fill: 2}}}}", DECODED)
    changed = load(copy, underived=True).cases[DECODED].param_arrays
    assert changed[name].tolist() == [1] * 6
    # Biases are left out but for the one that is written.
    assert changed.keys() - plain.keys() == {"b_vocab"}
    assert [n for n in plain if plain[n].tolist() != changed[n].tolist()] == [name]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("10645", "10646", f"{DECODED}: was changed after its golden values were derived: run goldformer derive"),
        ("w_vocab", "w_vocub", f"params.w_vocub: {DECODED}: is not in the contract, which has table, "),
    ],
)
def test_a_parameter_under_but_is_refused_as_any_other(copy: Path, old, new, said):
    edit(copy, bring(copy, "greedy_decode"), BUT, BUT.replace(old, new), DECODED)
    assert said in refusals(copy)[0]


# ── more than one ──


def test_several_problems_in_several_files_are_reported_together(copy: Path):
    edit(copy, "cases/softmax.yaml", "n: 7}", "m: 7}", "sm-four-axes")
    edit(copy, "cases/softmax.yaml", "{output: all}", "{weights: all}", "sm-long-row")
    edit(copy, "cases/causal_mask.yaml", "error: kv_seq", "error: q_seq", "mask-causal-no-keys")
    assert [re.sub(r"[\d.\[\]]+", "", refusal.split(": ")[1]) for refusal in refusals(copy)] == [
        "casesexpecterror", "casessizesm", "casesexpectweights",
    ]  # fmt: skip


def test_several_breaches_of_the_schema_are_reported_together(copy: Path):
    edit(copy, "cases/softmax.yaml", "seed: 12", "seed: twelve", "sm-four-axes")
    edit(copy, "cases/softmax.yaml", "    source:", "    colour: red\n    source:", "sm-long-row")
    fields = [refusal.split(": ")[1].partition(".")[2] for refusal in refusals(copy)]
    assert fields == ["inputs.scores.seed", "colour"]


# ── numbers that are none ──

# Each once ended in another exception, which named neither file, line nor field.
CRASHES = {
    "a step divided by zero": ("softmax", "sm-four-axes", "step: 1/64", "step: 1/0", "inputs.scores"),
    "ids that fall": ("padding_mask", "mask-padding-n9-source", "range: [0, 9]", "range: [9, 0]", "inputs.ids"),
    "a causal mask of one axis": (
        "scaled_dot_product_attention", "sdpa-java-three-tokens-causal", "shape: [q_seq, kv_seq]", "shape: [kv_seq]",
        "inputs.mask",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("component", "id_", "old", "new", "field"), CRASHES.values(), ids=CRASHES)
def test_nonsense_is_refused_at_its_line(copy: Path, component, id_, old, new, field):
    file = bring(copy, component)
    edit(copy, file, old, new, id_)
    first = line_of(copy, file, id_, *field.split("."))
    [refusal] = refusals(copy)
    named, line, _ = refusal.split(":", 2)
    assert named == file
    assert first <= int(line) < first + 7, "at the field, or at what is wrong inside it"


# ── what may change without a refusal ──


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: Scores of several", "title: Rows of many"),
        ("[SM-1, SM-2]", "[SM-2]"),
        ("source: derived", "source: {document: java, rows: [J1]}"),
        ("    meant_for: [softmax-whole-array]\n", "    # a comment\n    meant_for: [softmax-unstable]\n"),
    ],
    ids=["title", "clauses", "source", "meant_for"],
)
def test_what_decides_no_value_needs_no_new_derivation(copy: Path, old, new):
    edit(copy, "cases/softmax.yaml", old, new, "sm-four-axes")
    assert load(copy).cases["sm-four-axes"].golden is not None


def test_stale_golden_values_are_left_out_where_deriving_starts(copy: Path):
    edit(copy, "cases/softmax.yaml", "[0, 1, 3]", "[0, 1, 2]", "sm-one-row-by-hand")
    cases = load(copy, underived=True).cases
    assert [case.id for case in cases.values() if case.golden is None and not case.error] == ["sm-one-row-by-hand"]


def test_a_new_option_of_a_convention_makes_its_golden_values_stale(copy: Path):
    bring(copy, "scaled_dot_product_attention")
    edit(copy, "conventions.yaml", "      nan: weights", "      mean: another\n      nan: weights")
    stale = [case.id for case in load(copy, underived=True).cases.values() if case.golden is None and not case.error]
    assert stale == [
        "sdpa-empty-row",
        "sdpa-empty-row-one-sample",
        "sdpa-empty-row-by-query",
        "sdpa-heads-empty-row",
        "sdpa-heads-empty-queries-in-front",
    ]


def test_a_case_that_is_silent_on_a_convention_is_one_of_its_default(copy: Path):
    bring(copy, "layer_norm")
    edit(copy, "cases/layer_norm.yaml", "    convention: [layer_norm_eps, norm_divisor]\n", "", "ln-every-bit")
    case = load(copy, underived=True).cases["ln-every-bit"]
    assert case.only_with["layer_norm_eps"] == "1e-5"


def test_a_refusal_holds_for_every_option(spec):
    assert not any(case.only_with for case in spec.cases_of("layer_norm") if case.error)
