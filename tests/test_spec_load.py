"""The loader refuses whatever is wrong, naming file, line and field: the shipped spec, spoilt in one place at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from goldformer.spec import Spec, SpecError, load_spec

#: Case files that hold every kind of recipe, expectation and case between them, and load in milliseconds.
KEPT = ["causal_mask", "padding_mask", "positional_encoding", "scaled_dot_product_attention", "softmax"]

Spoil = Callable[..., tuple[str, int]]


@pytest.fixture
def copy(spec_copy: Path) -> Path:
    """A spec to be spoilt, with the case files that are quick to load."""
    for path in (spec_copy / "cases").glob("*.yaml"):
        if path.stem not in KEPT:
            path.unlink()
    return spec_copy


def load(root: Path, *, underived: bool = False) -> Spec:
    """Load past the cache of load_spec, since a copy is loaded, spoilt and loaded again."""
    return load_spec.__wrapped__(root, underived=underived)


def edit(root: Path, file: str, old: str, new: str, id_: str = "") -> None:
    """Replace the first `old` behind the line of an id (or of the file)."""
    text = (root / file).read_text(encoding="utf-8")
    start = text.index(f"id: {id_}\n") if id_ else 0
    end = text.find("\n  - id: ", start) if id_ else len(text)
    place = text.index(old, start, end if end > 0 else len(text))
    (root / file).write_text(text[:place] + new + text[place + len(old) :], encoding="utf-8")


def line_of(root: Path, file: str, id_: str, *keys: str) -> int:
    """The line of a field, found in the text alone: an id, then key after key."""
    text = (root / file).read_text(encoding="utf-8")
    place = text.index(f"id: {id_}\n") if id_ else 0
    for key in keys:
        place = re.compile(rf"\b{key}:").search(text, place).start()
    return text.count("\n", 0, place) + 1


def index_of(root: Path, file: str, id_: str) -> int:
    text = (root / file).read_text(encoding="utf-8")
    return text[: text.index(f"id: {id_}\n")].count("\n  - id: ")


def refusals(root: Path) -> list[str]:
    """What load_spec says, without the folder in front."""
    with pytest.raises(SpecError, match=re.escape(str(root))) as error:
        load(root)
    assert str(error.value) == "\n".join(map(str, error.value.problems))
    return [str(problem).removeprefix(f"{root}/") for problem in error.value.problems]


def test_the_copy_loads_as_it_is(copy: Path):
    assert {case.component for case in load(copy).cases.values()} == set(KEPT)


# ── one wrong thing in one case ──

UNKNOWN = "unknown key; the keys known here are in the JSON Schema of CasesFile"
STALE = "was changed after its golden values were derived: run goldformer derive"
SHAPE = "scores: {fill: 0, shape: [3, 2, 0]}"
GRID = "both must be whole, rising and at most 256 in size, so that bfloat16 holds every element"

#: What: component, case, the text and its replacement, the field, the message ({id} is the case's).
CASES = {
    # the schema
    "unknown key": ("softmax", "sm-four-axes", "    source:", "    colour: red\n    source:", "colour", UNKNOWN),
    "unknown key in a recipe": (
        "softmax", "sm-four-axes", "dyadic, seed:", "dyadic, sed: 1, seed:", "inputs.scores.sed", UNKNOWN,
    ),
    "wrong type": (
        "softmax", "sm-four-axes", "[SM-1, SM-2]", "3", "clauses", "Input should be a valid list, got 3",
    ),
    "bool for a seed": (
        "softmax", "sm-four-axes", "seed: 12", "seed: true", "inputs.scores.seed",
        "Input should be a valid integer, got True",
    ),
    "ill-formed derivation": (
        "softmax", "sm-one-row-by-hand", "derivation: '", "derivation: 'x", "golden.derivation",
        "String should match pattern '^[0-9a-f]{16}$', got 'xf28d86de681aec65'",
    ),
    # conventions
    "unknown convention": (
        "causal_mask", "mask-causal-1x6", ": causal_corner", ": corner", "convention",
        "{id}: causal_mask depends on causal_corner",
    ),
    "convention of a component without": (
        "softmax", "sm-four-axes", "    expect:", "    convention: empty_row\n    expect:", "convention",
        "{id}: softmax depends on none",
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
        "inputs", "{id}: contradicts the contract: mask is float64, not boolean",
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
        "softmax", "sm-a-thousand", "{values: [", "{values: [[1, 2], ", "inputs.scores",
        "{id}: has rows of unequal length",
    ),
    "words for numbers": (
        "softmax", "sm-one-row-by-hand", "[0, 1, 3]", "[zero, one, three]", "inputs.scores",
        "{id}: holds <U5 values where the contract says float",
    ),
    "decimals for ids": (
        "padding_mask", "mask-padding-none", "[[3,", "[[3.5,", "inputs.ids",
        "{id}: holds float64 values where the contract says ids",
    ),
    "another number of lengths": (
        "scaled_dot_product_attention", "sdpa-padding-per-sample", "lengths: [6, 4, 1]", "lengths: [6, 4]",
        "inputs.mask", "{id}: has 2 lengths for a first axis of 3",
    ),
    # expectations
    "an unknown output": (
        "softmax", "sm-four-axes", "{output: all}", "{weights: all}", "expect.weights",
        "{id}: is no output; softmax gives output",
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
        "{id}: needs expect: {{weights: all}}",
    ),
    # golden values
    "a changed input": ("softmax", "sm-one-row-by-hand", "[0, 1, 3]", "[0, 1, 2]", "golden", f"{{id}}: {STALE}"),
    "a changed size": ("softmax", "sm-four-axes", "[2, 3, 4]", "[2, 4, 3]", "golden", f"{{id}}: {STALE}"),
    "a changed mask": (
        "scaled_dot_product_attention", "sdpa-padding-per-sample", "[6, 4, 1]", "[6, 4, 2]", "golden", f"{{id}}: {STALE}",
    ),
    "another thing asked for": (
        "scaled_dot_product_attention", "sdpa-causal", "output: all, weights: all", "output: all, scores: all", "golden",
        f"{{id}}: {STALE}",
    ),
    "a value too few": (
        "softmax", "sm-one-row-by-hand", "values: [0.042010066134066051, ", "values: [", "golden",
        "{id}: output has shape (2,), the contract says (3,)",
    ),
    "an output too many": (
        "softmax", "sm-one-row-by-hand", "      outputs:\n", "      outputs:\n        w: {error_scale: 1, values: 1}\n",
        "golden", "{id}: has outputs ['output', 'w'], the case asks for ['output']",
    ),
    "an option too few": (
        "positional_encoding", "pe-odd-5", "        refused: refused\n", "", "golden",
        "{id}: has values for ['extra_sine'], the convention has ['extra_sine', 'refused']",
    ),
    "values at other places": (
        "positional_encoding", "pe-20x512-drawn", "at: [[0, 0, 191]", "at: [[0, 0, 192]", "golden",
        "{id}: output is given at other places than the case asks for",
    ),
    "golden values for an error case": (
        "causal_mask", "mask-causal-no-keys", "{error: kv_seq}",
        "{error: kv_seq}\n    golden: {derivation: '0123456789abcdef', peak: 0, outputs: {}}", "golden",
        "{id}: has golden values, but asks for none",
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


@pytest.mark.parametrize(("component", "id_", "old", "new", "field", "message"), CASES.values(), ids=CASES)
def test_a_spoilt_case_is_refused_at_its_line(copy: Path, component, id_, old, new, field, message):
    file = f"cases/{component}.yaml"
    edit(copy, file, old, new, id_)
    line, index = line_of(copy, file, id_, *field.split(".")), index_of(copy, file, id_)
    if "{id}" in message:
        message = message.format(id=id_)
    assert refusals(copy) == [f"{file}:{line}: cases[{index}].{field}: {message}"]


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


def test_a_missing_golden_block_is_refused_at_the_line_of_its_case(copy: Path):
    file = copy / "cases/softmax.yaml"
    text = file.read_text(encoding="utf-8")
    start = text.index("    golden:")
    file.write_text(text[:start] + text[text.index("\n  - id:", start) :], encoding="utf-8")
    message = "sm-one-row-by-hand: has no golden values: run goldformer derive"
    assert refusals(copy) == [f"cases/softmax.yaml:4: cases[0].id: {message}"]
    assert load(copy, underived=True).cases["sm-one-row-by-hand"].golden is None


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
    assert refusals(copy) == [f"cases/padding_mask.yaml:{second}: id: {message}"]


# Bug: these three are refused at the line of the case's id, not at the line of the field that is named.
@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ("[SM-1, SM-2]", "[SM-1, SM-99]", "clauses", "SM-99 is no clause of transformer.md"),
        ("    sizes:", "    catches: [scale-mising]\n    sizes:", "catches", "'scale-mising' is not in mistakes.yaml"),
        ("rows: [J1]", "rows: [J9]", "source", "cites rows ['J9'] of java, which has J1, J2"),
    ],
    ids=["clause", "mistake", "document row"],
)
def test_an_unknown_reference_is_refused_at_its_line(copy: Path, old, new, field, message):
    edit(copy, "cases/softmax.yaml", old, new, "sm-one-row-by-hand")
    line = line_of(copy, "cases/softmax.yaml", "sm-one-row-by-hand", field)
    assert refusals(copy) == [f"cases/softmax.yaml:{line}: sm-one-row-by-hand.{field}: {message}"]


def test_an_unknown_document_is_refused_with_those_that_there_are(copy: Path):
    edit(copy, "cases/softmax.yaml", "document: java", "document: jav", "sm-one-row-by-hand")
    message = "cites 'jav', which documents.yaml lacks: it has walkthrough, primer, n9, java, illustrated, paper"
    [refusal] = refusals(copy)
    assert refusal.endswith(f": sm-one-row-by-hand.source: {message}")


# ── tables ──

TABLES = {
    "bad default": (
        "conventions", "empty_row", "default: uniform", "default: unifrom", "default", "'unifrom' is not in its options",
    ),
    "one option": (
        "conventions", "odd_d_model", "      refused: an odd d_model is an error\n", "", "options",
        "Dictionary should have at least 2 items after validation, not 1, got {'extra_sine': "
        "'the last channel is a sine without its coso…",
    ),
    "clause of a convention": (
        "conventions", "pe_layout", "clause: PE-6", "clause: PE-66", "clause", "'PE-66' is not in transformer.md",
    ),
    "component of a mistake": (
        "mistakes", "scale-missing", "component: scaled", "component: unscaled", "component",
        "'unscaled_dot_product_attention' is not in contracts/",
    ),
    "mistake taken": ("mistakes", "scale-no-root", "id: scale-no-root", "id: scale-missing", "id",
                      "'scale-missing' is taken"),
    "component of a property": (
        "properties", "sm-shift", "component: softmax", "component: softmin", "component",
        "'softmin' is not in contracts/",
    ),
    "clause of a property": (
        "properties", "sm-shift", "[SM-4]", "[SM-44]", "clauses", "'SM-44' is not in transformer.md",
    ),
    # Bug: a bad `needs` is refused as the property's `component`, one or more lines above.
    "component that a property needs": (
        "properties", "sm-shift", "[SM-4]", "[SM-4]\n    needs: [softmin]", "needs", "'softmin' is not in contracts/",
    ),
    "document of an erratum": (
        "errata", "java-square", "document: java", "document: jav", "document", "'jav' is not in documents.yaml",
    ),
    "row of an erratum": (
        "errata", "java-square", "rows: [J1]", "rows: [W1]", "rows", "'W1' is not in documents.yaml under java",
    ),
    "clause of an erratum": (
        "errata", "java-square", "[SDPA-5]", "[SDPA-55]", "clauses", "'SDPA-55' is not in transformer.md",
    ),
    "erratum without proof": (
        "errata", "java-square", "[sdpa-cross-lengths]", "[]", "proof",
        "List should have at least 1 item after validation, not 0, got []",
    ),
    "row of a document twice": ("documents", "java", "- id: J2", "- id: J1", "rows", "has a row id twice"),
}  # fmt: skip


@pytest.mark.parametrize(("table", "id_", "old", "new", "field", "message"), TABLES.values(), ids=TABLES)
def test_a_spoilt_table_is_refused_at_its_line(copy: Path, table, id_, old, new, field, message):
    file = f"{table}.yaml"
    line, index = line_of(copy, file, id_), index_of(copy, file, id_)
    edit(copy, file, old, new, "" if field == "id" else id_)
    line = line if field == "id" else line_of(copy, file, id_, field)
    assert refusals(copy) == [f"{file}:{line}: {table}[{index}].{field}: {message}"]


# ── contracts ──

CONTRACTS = {
    "bad axis": (
        "softmax", '["...", n]', '["...", n+1]', "inputs.scores",
        "'n+1' is no axis: write a size, a number, or a product such as 3*heads*d_k",
    ),
    "no shape": ("softmax", ', shape: ["...", n]', "", "inputs.scores", "needs either `shape` or `broadcast`"),
    "two shapes": (
        "softmax", "shape:", 'broadcast: [n], shape:', "inputs.scores", "needs either `shape` or `broadcast`",
    ),
    "another name than its file": (
        "softmax", "component: softmax", "component: softmin", "component", "is 'softmin' in a file named softmax.yaml",
    ),
    "unknown convention": (
        "causal_mask", "[causal_corner]", "[corner]", "conventions", "'corner' is not in conventions.yaml",
    ),
    "unknown output in its flow": (
        "fused_multi_head_attention", "flow: [qkv,", "flow: [kqv,", "flow", "'kqv' is not among the outputs",
    ),
    "unknown component": (
        "multi_head_attention", "depends_on: [scaled", "depends_on: [unscaled", "depends_on",
        "'unscaled_dot_product_attention' has no contract",
    ),
    "a circle of itself": (
        "padding_mask", "depends_on: []", "depends_on: [padding_mask]", "depends_on", "runs in a circle",
    ),
    # Bug: fused_multi_head_attention is blamed, which depends on the circle but is no part of it.
    "a circle of two": (
        "softmax", "depends_on: []", "depends_on: [scaled_dot_product_attention]", "depends_on", "runs in a circle",
    ),
    # Bugs: a size that no array gives ends in a KeyError, which names neither file nor line.
    "unknown size of an output": (
        "softmax", 'outputs:\n  output: {kind: float, shape: ["...", n]}',
        'outputs:\n  output: {kind: float, shape: ["...", m]}', "outputs.output", "",
    ),
    "unknown size of a mask": (
        "scaled_dot_product_attention", 'broadcast: ["...", q_seq,', 'broadcast: ["...", q_sek,', "inputs.mask", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("component", "old", "new", "field", "message"), CONTRACTS.values(), ids=CONTRACTS)
def test_a_spoilt_contract_is_refused_at_its_line(copy: Path, component, old, new, field, message):
    file = f"contracts/{component}.yaml"
    edit(copy, file, old, new)
    expected = f"{file}:{line_of(copy, file, '', *field.split('.'))}: {field}: {message}"
    assert any(refusal.startswith(expected) for refusal in refusals(copy))


# ── clauses ──


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ("### SM-2 · MUST", "### SM-2 · SHALL", "heading", "write ### ID-1 · MUST|SHOULD|CONVENTION · Title"),
        ("### SM-2 ·", "### SM-1 ·", "SM-1", "first stands on line {sm1}"),
        ("### SM-2 · MUST · Rows", "### SM-2 · MUST · Rows\n\n### SM-9 · MUST · Rows", "SM-2",
         "must end with a paragraph such as: Source: walkthrough W1; paper 3.2.1."),
        ("### SM-2 · MUST · Rows", "### SM-2 · MUST · Rows\n\nSource: walkthrough W1 W77.\n\n### SM-9 · MUST · Rows",
         "SM-2", "cites rows ['W77'] of walkthrough, which has W1, W11, W2, W3, W4, W5, W6, W7, W8, W9"),
        ("### SM-2 · MUST · Rows", "### SM-2 · MUST · Rows\n\nSource: paper.\n\n### SM-9 · MUST · Rows",
         "SM-2", "cites rows [] of paper, which has "),
    ],
    ids=["heading", "twice", "no source", "unknown row", "a document alone"],
)  # fmt: skip
def test_a_spoilt_clause_is_refused_at_its_heading(copy: Path, old, new, field, message):
    lines = (copy / "transformer.md").read_text(encoding="utf-8").splitlines()
    [sm1], [sm2] = ([i + 1 for i, line in enumerate(lines) if line.startswith(f"### SM-{k} ")] for k in (1, 2))
    edit(copy, "transformer.md", old, new)
    assert refusals(copy)[0] == f"transformer.md:{sm2}: {field}: {message.format(sm1=sm1)}"


# ── whole files ──


@pytest.mark.parametrize("file", ["cases/softmax.yaml", "contracts/softmax.yaml", "errata.yaml"])
@pytest.mark.parametrize("content", ["", "\n\n# nothing but a comment\n"], ids=["empty", "comment"])
def test_an_empty_file_is_refused(copy: Path, file, content):
    (copy / file).write_text(content, encoding="utf-8")
    assert refusals(copy) == [f"{file}:1: file: is empty"]


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"a: 1\nb:\n\tc: 1\n", 3, "found character that cannot start any token"),
        (b"a: 1\nb: [1, 2\nc: 3\n", 3, "did not find expected ',' or ']'"),
        (b"a: 1\n---\nb: 1\n", 2, "but found another document"),
        (b"a: *b\n", 1, "found undefined alias"),
        # Bugs: these four end in another exception, which names neither file nor line.
        (b"a: 1\n# \x01\n", 2, ""),
        (b"a: 1\n# \xe9\n", 2, ""),
        (b"a: 1\n[a, b]: 1\n", 2, ""),
        (b"a: 1\nb: {{c}}\n", 2, ""),
    ],
    ids=["tab", "open bracket", "two documents", "alias", "control character", "latin-1", "list as key", "braces"],
)
def test_what_is_not_yaml_is_refused_at_its_line(copy: Path, content, line, message):
    (copy / "cases/softmax.yaml").write_bytes(content)
    [refusal] = refusals(copy)
    assert refusal.startswith(f"cases/softmax.yaml:{line}: file: is not YAML: {message}")


def test_a_key_written_twice_is_refused_with_both_lines(copy: Path):
    edit(copy, "cases/softmax.yaml", "    source:", "    title: again\n    source:", "sm-four-axes")
    first = line_of(copy, "cases/softmax.yaml", "sm-four-axes", "title")
    assert refusals(copy) == [f"cases/softmax.yaml:{first + 2}: title: is written twice (first on line {first})"]


def test_a_file_that_is_no_mapping_is_refused(copy: Path):
    (copy / "cases/softmax.yaml").write_text("- a\n", encoding="utf-8")
    message = "Input should be a valid dictionary or instance of CasesFile, got ['a']"
    assert refusals(copy) == [f"cases/softmax.yaml:1: file: {message}"]


def test_cases_without_a_contract_are_refused(copy: Path):
    edit(copy, "cases/softmax.yaml", "component: softmax", "component: softmin")
    line = line_of(copy, "cases/softmax.yaml", "", "component")
    assert refusals(copy) == [f"cases/softmax.yaml:{line}: component: 'softmin' has no contract"]


# Bug: a case file may have any name, and two may hold cases of one component; contracts are held to theirs.
def test_cases_in_a_file_of_another_name_are_refused(copy: Path):
    (copy / "cases/softmax.yaml").rename(copy / "cases/softmin.yaml")
    line = line_of(copy, "cases/softmin.yaml", "", "component")
    assert refusals(copy) == [f"cases/softmin.yaml:{line}: component: is 'softmax' in a file named softmin.yaml"]


@pytest.mark.parametrize("folder", ["cases", "contracts"])
def test_a_folder_without_files_is_refused(copy: Path, folder):
    for path in (copy / folder).iterdir():
        path.rename(path.with_suffix(".yml"))
    assert refusals(copy) == [f"{folder}:1: folder: holds no .yaml file"]


# Bug: FileNotFoundError, so that `goldformer lint --spec FOLDER` ends in a traceback.
def test_a_missing_file_is_refused(copy: Path):
    (copy / "errata.yaml").unlink()
    [refusal] = refusals(copy)
    assert refusal.startswith("errata.yaml:1: file: ")


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


def test_several_contracts_are_reported_together(copy: Path):
    edit(copy, "contracts/softmax.yaml", "component: softmax", "component: softmin")
    edit(copy, "contracts/causal_mask.yaml", "[causal_corner]", "[corner]")
    assert {refusal.split(":")[0] for refusal in refusals(copy)} >= {
        "contracts/softmax.yaml", "contracts/causal_mask.yaml", "contracts/scaled_dot_product_attention.yaml",
    }  # fmt: skip


# ── numbers that are none ──

# Bugs: each ends in another exception, which names neither file, line nor field.
CRASHES = {
    "a step divided by zero": ("softmax", "sm-four-axes", "step: 1/64", "step: 1/0", "inputs.scores"),
    "ids that fall": ("padding_mask", "mask-padding-n9-source", "range: [0, 9]", "range: [9, 0]", "inputs.ids"),
    "a causal mask of one axis": (
        "scaled_dot_product_attention", "sdpa-java-three-tokens-causal", "shape: [q_seq, kv_seq]", "shape: [kv_seq]",
        "inputs.mask",
    ),
    "golden values that are a mapping": (
        "softmax", "sm-one-element", "          values:\n", "          values: {a: 1}\n          #\n", "golden",
    ),
    # Bugs: each loads, the first as NaN, the others as 1 and true.
    "a golden value that is nothing": ("softmax", "sm-one-row-by-hand", "[0.042010066134066051", "[null", "golden"),
    "a golden value that is true": ("softmax", "sm-one-row-by-hand", "[0.042010066134066051", "[true", "golden"),
    "a golden truth that is 0.5": ("padding_mask", "mask-padding-none", "[true, ", "[0.5, ", "golden"),
}  # fmt: skip


@pytest.mark.parametrize(("component", "id_", "old", "new", "field"), CRASHES.values(), ids=CRASHES)
def test_nonsense_is_refused_at_its_line(copy: Path, component, id_, old, new, field):
    file = f"cases/{component}.yaml"
    edit(copy, file, old, new, id_)
    if id_ == "sm-one-element":
        text = (copy / file).read_text(encoding="utf-8")
        (copy / file).write_text(re.sub(r"(#\n)(            - .*\n)+", r"\1", text), encoding="utf-8")
    [refusal] = refusals(copy)
    assert refusal.startswith(f"{file}:{line_of(copy, file, id_, *field.split('.'))}: ")


# ── what may change without a refusal ──


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: Scores of several", "title: Rows of many"),
        ("[SM-1, SM-2]", "[SM-2]"),
        ("source: derived", "source: {document: java, rows: [J1]}"),
        ("    source: derived\n", "    # a comment\n    source: derived\n    catches: [softmax-unstable]\n"),
    ],
    ids=["title", "clauses", "source", "catches"],
)
def test_what_decides_no_value_needs_no_new_derivation(copy: Path, old, new):
    edit(copy, "cases/softmax.yaml", old, new, "sm-four-axes")
    assert load(copy).cases["sm-four-axes"].golden is not None


def test_stale_golden_values_are_left_out_where_deriving_starts(copy: Path):
    edit(copy, "cases/softmax.yaml", "[0, 1, 3]", "[0, 1, 2]", "sm-one-row-by-hand")
    cases = load(copy, underived=True).cases
    assert [case.id for case in cases.values() if case.golden is None and not case.error] == ["sm-one-row-by-hand"]


def test_a_new_option_of_a_convention_makes_its_golden_values_stale(copy: Path):
    edit(copy, "conventions.yaml", "      nan: weights", "      mean: another\n      nan: weights")
    stale = [case.id for case in load(copy, underived=True).cases.values() if case.golden is None and not case.error]
    assert stale == ["sdpa-empty-row", "sdpa-empty-row-one-sample", "sdpa-empty-row-by-query"]
