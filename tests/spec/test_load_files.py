"""The loader refuses tables, contracts, clauses and whole files that are wrong, naming file, line and field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spoiling import bring, edit, index_of, keep, line_of, load, refusals

#: Case files that load in milliseconds; `bring` adds another one.
KEPT = ["causal_mask", "padding_mask", "softmax"]


@pytest.fixture
def copy(spec_copy: Path) -> Path:
    """A spec to be spoilt, with the case files that are quick to load."""
    keep(spec_copy, KEPT)
    return spec_copy


# ── tables ──

TABLES = {
    "bad default": (
        "conventions", "empty_row", "default: uniform", "default: unifrom", "default",
        "'unifrom' is not in its options",
    ),
    "one option": (
        "conventions", "pad_row",
        "      fixed: its gradient is 0, as with the padding_idx of nn.Embedding\n",
        "", "options",
        "Dictionary should have at least 2 items after validation, not 1, got {'learned': "
        "'it has a gradient like any other row'}",
    ),
    "clause of a convention": (
        "conventions", "pe_layout", "clause: PE-6", "clause: PE-66", "clause",
        "'PE-66' is not in transformer.md or decoder_only.md",
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
        "properties", "sm-shift", "SM-4]", "SM-44]", "clauses", "'SM-44' is not in transformer.md or decoder_only.md",
    ),
    # Once refused as the property's `component`.
    "component that a property needs": (
        "properties", "sm-shift", "SM-4]", "SM-4]\n    needs: [softmin]", "needs", "'softmin' is not in contracts/",
    ),
    "document of an erratum": (
        "errata", "java-square", "document: java", "document: jav", "document", "'jav' is not in documents.yaml",
    ),
    "row of an erratum": (
        "errata", "java-square", "rows: [J1]", "rows: [W1]", "rows", "'W1' is not in documents.yaml under java",
    ),
    "clause of an erratum": (
        "errata", "java-square", "[SDPA-5]", "[SDPA-55]", "clauses",
        "'SDPA-55' is not in transformer.md or decoder_only.md",
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


PLACE = "Kyubyong/transformer#60 (claimed)"
FORM = (
    "should be owner/name#12 (a thread), owner/name:path (a file) or owner/name, "
    "with nothing after it but a note in parentheses"
)


@pytest.mark.parametrize(
    "place",
    [
        "transformer#60",
        "https://github.com/Kyubyong/transformer/issues/60",
        "Kyubyong/transformer#60 claimed",
        "Kyubyong/transformer#60 ()",
        "Kyubyong/transformer#60, Kyubyong/transformer#61",
    ],
)
def test_a_place_of_another_form_is_refused_with_the_form(copy: Path, place):
    file, id_ = "mistakes.yaml", "scale-missing"
    edit(copy, file, PLACE, place, id_)
    line, index = line_of(copy, file, id_, "seen") + 1, index_of(copy, file, id_)
    assert refusals(copy) == [f"{file}:{line}: mistakes[{index}].seen[0]: {FORM}, got {place!r}"]


def test_a_place_is_a_thread_a_file_or_a_repository(copy: Path):
    places = (
        "Kyubyong/transformer#60",
        "Kyubyong/transformer:modules.py (read, lines 1 and 2)",
        "Kyubyong/transformer",
    )
    edit(copy, "mistakes.yaml", PLACE, "\n      - ".join(places), "scale-missing")
    assert load(copy).mistakes["scale-missing"].seen == places


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
    # A size that no array gives once ended in a KeyError.
    "unknown size of an output": (
        "softmax", 'outputs:\n  output: {kind: float, shape: ["...", n]}',
        'outputs:\n  output: {kind: float, shape: ["...", m]}', "outputs.output", "",
    ),
    "unknown size of a mask": (
        "scaled_dot_product_attention", 'broadcast: ["...", q_seq,', 'broadcast: ["...", q_sek,', "inputs.mask", "",
    ),
    "a multiple of no attribute": (
        "decoder_only_layer", "multiple_of: num_kv_heads", "multiple_of: kv_heads", "attributes.num_heads.multiple_of",
        "kv_heads is no attribute: write one of num_heads, num_kv_heads, base, window, scale, softcap, or a number",
    ),
    "a limit that is no axis": (
        "rotary_embedding", "at_most: 2*pairs", "at_most: 2+pairs", "attributes.rotary_width.at_most",
        "'2+pairs' is no axis: write a size, a number, or a product such as 3*heads*d_k",
    ),
    "an unknown limit": (
        "rotary_embedding", "at_most: 2*pairs", "at_most: 2*pears", "attributes.rotary_width.at_most",
        "pears is no attribute and no size of an argument: write one of base, original_length, pairs, rotary_width, "
        "scaling_factor, seq, or a product",
    ),
    "a session without a script": (
        "cached_attention", "calls: {kind: ints}", "calls: {kind: int}", "session",
        "has no script: write the attribute calls: {kind: ints}",
    ),
    "a session that must say what each call follows": (
        "cached_attention", "after: {kind: ints, optional: true}", "after: {kind: ints}", "session",
        "has no script: write the attribute after: {kind: ints, optional: true}",
    ),
    "a session along no axis": (
        "cached_attention", "axis: seq", "axis: length", "session.axis",
        "'length' is no axis of an input: name the axis along which tokens lie",
    ),
    "an input without the axis of a session": (
        "cached_attention", "so_far: [mask]", "so_far: [masks]", "session.so_far",
        "'masks' is no input with the axis seq: write some of query, key, value, mask",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("component", "old", "new", "field", "message"), CONTRACTS.values(), ids=CONTRACTS)
def test_a_spoilt_contract_is_refused_at_its_line(copy: Path, component, old, new, field, message):
    file = f"contracts/{component}.yaml"
    edit(copy, file, old, new)
    bring(copy, component) if "mask" in field else None
    expected = f"{file}:{line_of(copy, file, '', *field.split('.'))}: {field}: {message}"
    assert any(refusal.startswith(expected) for refusal in refusals(copy))


# fused_multi_head_attention was once blamed, which depends on the circle but is no part of it.
def test_a_circle_of_contracts_is_refused_at_one_of_them(copy: Path):
    edit(copy, "contracts/softmax.yaml", "depends_on: []", "depends_on: [scaled_dot_product_attention]")
    [refusal] = refusals(copy)
    assert refusal.split(":")[0].removeprefix("contracts/") in {"softmax.yaml", "scaled_dot_product_attention.yaml"}
    assert re.search(r":[34]: depends_on: runs in a circle$", refusal)


# ── clauses ──


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        ("### SM-2 · MUST", "### SM-2 · SHALL", "heading", "write ### ID-1 · MUST|SHOULD|CONVENTION · Title"),
        ("### SM-2 ·", "### SM-1 ·", "SM-1", "first stands on line {sm1}"),
        ("### SM-2 · MUST · Rows", "### SM-2 · MUST · Rows\n\n### SM-9 · MUST · Rows", "SM-2",
         "must end with a paragraph such as: Source: walkthrough W1; paper 3.2.1."),
        ("### SM-2 · MUST · Rows", "### SM-2 · MUST · Rows\n\nSource: walkthrough W1 W77.\n\n### SM-9 · MUST · Rows",
         "SM-2", "cites rows ['W77'] of walkthrough, which has W1, W10, W11, W2, W3, W4, W5, W6, W7, W8, W9"),
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
        # These four once ended in another exception, which named neither file nor line.
        (b"a: 1\n# \x01\n", 2, ""),
        (b"a: 1\n# \xe9\n", 2, ""),
        (b"a: 1\n[a, b]: 1\n", 2, ""),
        (b"a: 1\nb: {{c}}\n", 2, ""),
    ],
    ids=["tab", "open bracket", "two documents", "control character", "latin-1", "list as key", "braces"],
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
    message = "should be a mapping of keys to values, got ['a']"
    assert refusals(copy) == [f"cases/softmax.yaml:1: file: {message}"]


def test_cases_without_a_contract_are_refused(copy: Path):
    edit(copy, "cases/softmax.yaml", "component: softmax", "component: softmin")
    line = line_of(copy, "cases/softmax.yaml", "", "component")
    assert refusals(copy) == [f"cases/softmax.yaml:{line}: component: 'softmin' has no contract"]


# A case file once might have any name; contracts were held to theirs.
def test_cases_in_a_file_of_another_name_are_refused(copy: Path):
    (copy / "cases/softmax.yaml").rename(copy / "cases/softmin.yaml")
    line = line_of(copy, "cases/softmin.yaml", "", "component")
    assert refusals(copy) == [f"cases/softmin.yaml:{line}: component: is 'softmax' in a file named softmin.yaml"]


@pytest.mark.parametrize("folder", ["cases", "contracts"])
def test_a_folder_without_files_is_refused(copy: Path, folder):
    for path in (copy / folder).iterdir():
        path.rename(path.with_suffix(".yml"))
    assert refusals(copy) == [f"{folder}:1: folder: holds no .yaml file"]


# Once a FileNotFoundError, and `goldformer lint --spec FOLDER` ended in a traceback.
def test_a_missing_file_is_refused(copy: Path):
    (copy / "errata.yaml").unlink()
    [refusal] = refusals(copy)
    assert refusal.startswith("errata.yaml:1: file: ")


def test_several_contracts_are_reported_together(copy: Path):
    edit(copy, "contracts/softmax.yaml", "component: softmax", "component: softmin")
    edit(copy, "contracts/causal_mask.yaml", "[causal_corner]", "[corner]")
    assert {refusal.split(":")[0] for refusal in refusals(copy)} >= {
        "contracts/softmax.yaml", "contracts/causal_mask.yaml", "contracts/scaled_dot_product_attention.yaml",
    }  # fmt: skip
