"""Every lint rule fires on a spoilt copy and on nothing shipped; and the golden values are the documents' numbers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.spec import ROOT, Case, Level, Spec, load_spec
from goldformer.spec.families import lint_families
from goldformer.spec.making import lint as rules
from goldformer.spec.making.coverage import EVERY_CALL, cover
from goldformer.spec.making.lint import lint
from goldformer.spec.making.vacuity import find_vacuous
from spoiling import keep, load

KEPT = ["causal_mask", "single_head_attention", "softmax"]
JAVA = "cases/single_head_attention.yaml"


@pytest.fixture
def copy(spec_copy: Path) -> Path:
    """A spec with few cases: quick to load, and what else the lint then says was there before the spoiling."""
    keep(spec_copy, KEPT)
    return spec_copy


def problems(root: Path) -> list[str]:
    return [str(problem).removeprefix(f"{root}/") for problem in lint(load(root))]


def fresh(root: Path, *edits: tuple[str, str, str]) -> list[str]:
    """Return the problems that the lint finds only after some edits; lines are those of the edited files."""
    before = {re.sub(r":\d+:", ":", problem, count=1) for problem in problems(root)}
    for file, old, new in edits:
        text = (root / file).read_text(encoding="utf-8")
        assert old in text, f"{file} has no {old!r}"
        (root / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    return [problem for problem in problems(root) if re.sub(r":\d+:", ":", problem, count=1) not in before]


def line(root: Path, file: str, beginning: str) -> int:
    lines = (root / file).read_text(encoding="utf-8").splitlines()
    return next(i + 1 for i, text in enumerate(lines) if text.strip().startswith(beginning))


# ── the rules ──


def test_a_family_needs_ten_cases_with_values_in_each_of_its_components(spec: Spec):
    llama = spec.families["llama-3"]
    options = {**llama.options, "rms_norm_eps": ("float32_eps",), "rms_norm_weight": ("one_plus_w",)}
    rare = llama.model_copy(update={"options": options})
    rare.set_place(llama.place)
    found = [str(problem) for problem in lint_families(replace(spec, families={"rare": rare}))]
    few = [line for line in found if "cases of rms_norm with values" in line]
    assert few
    assert "rms_norm_eps: float32_eps" in few[0]
    assert any("run goldformer derive --case rms-" in line for line in found)
    assert not [*lint_families(spec)]


def test_a_must_that_nothing_shows_is_found(copy: Path):
    new = "### SM-77 · MUST · Unshown\n\nSo be it.\n\nSource: this spec.\n\n### SM-1 ·"
    found = fresh(copy, ("transformer.md", "### SM-1 ·", new))
    where = line(copy, "transformer.md", "### SM-77")
    assert found == [f"transformer.md:{where}: SM-77: is a MUST that no case and no property shows"]


@pytest.mark.parametrize("level", ["SHOULD", "CONVENTION"])
def test_a_clause_that_binds_less_needs_no_proof(copy: Path, level):
    new = f"### SM-77 · {level} · Unshown\n\nSo be it.\n\nSource: this spec.\n\n### SM-1 ·"
    assert fresh(copy, ("transformer.md", "### SM-1 ·", new)) == []


def test_taking_the_last_proof_of_a_must_is_found(copy: Path):
    for file in (JAVA, "properties.yaml"):
        text = (copy / file).read_text(encoding="utf-8")
        (copy / file).write_text(text.replace("SHA-3", "SHA-2"), encoding="utf-8")
    found = [problem for problem in problems(copy) if ": SHA-3: " in problem]
    where = line(copy, "transformer.md", "### SHA-3")
    assert found == [f"transformer.md:{where}: SHA-3: is a MUST that no case and no property shows"]


ROW = '      - id: J99\n        section: "9"\n        says: nothing\n'
NO_ROW = ("documents.yaml", "      - id: J2\n", f"{ROW}      - id: J2\n")
UNSHOWN = "java J99: is shown by no case, no property and no proof of an erratum; it is cited by "


def test_a_document_row_that_nobody_cites_is_found(copy: Path):
    found = fresh(copy, NO_ROW)
    where = line(copy, "documents.yaml", "- id: J99")
    assert found == [f"documents.yaml:{where}: {UNSHOWN}nothing"]


def test_a_row_that_clauses_cite_and_nothing_shows_is_found(copy: Path):
    new = "### SM-77 · SHOULD · Unshown\n\nSo be it.\n\nSource: java J99.\n\n### SM-1 ·"
    found = fresh(copy, NO_ROW, ("transformer.md", "### SM-1 ·", new))
    assert [problem.split(": ", 1)[1] for problem in found] == [f"{UNSHOWN}only SM-77"]


@pytest.mark.parametrize(
    "edit",
    [
        (JAVA, "rows: [J1]", "rows: [J1, J99]"),
        ("transformer.md", "Source: java J1 J2.", "Source: java J1 J2 J99."),
        ("errata.yaml", "rows: [J1]\n    section: softmax", "rows: [J1, J99]\n    section: softmax"),
    ],
    ids=["by a case", "by a case of a clause that cites it", "by the proof of an erratum"],
)
def test_a_row_that_something_shows_is_covered(copy: Path, edit):
    assert fresh(copy, NO_ROW, edit) == []


def test_a_convention_that_no_case_depends_on_is_found(copy: Path):
    new = (
        "conventions:\n  - id: moon\n    title: Its phase\n    clause: SM-1\n    default: full\n"
        "    options: {full: round, new: dark}\n"
    )
    found = fresh(copy, ("conventions.yaml", "conventions:\n", new))
    assert found == ["conventions.yaml:1: moon: is a convention that no case depends on"]


@pytest.mark.parametrize("shown_by", [None, "a case", "a property"])
def test_a_mistake_that_nothing_reveals_is_found(copy: Path, shown_by):
    new = (
        "mistakes:\n  - {id: sm-base-two, component: softmax, title: powers of 2, does: 2^s, symptom: Flat.,"
        " why: 2 is not e., hint: Take powers of e., reveals: anything, hides: nothing}\n"
    )
    edits = [("mistakes.yaml", "mistakes:\n", new)]
    if shown_by == "a case":
        edits.append(("golden/softmax.json", '"kills": [', '"kills": ["sm-base-two", '))
    if shown_by == "a property":
        edits.append(
            ("properties.yaml", "    catches: [softmax-unstable", "    catches: [sm-base-two, softmax-unstable")
        )
    message = (
        "is killed by no case and caught by no property: add a case that is meant_for it and run "
        "goldformer mistakes sm-base-two --matrix --write, or list it in the catches of a property"
    )
    assert fresh(copy, *edits) == ([] if shown_by else [f"mistakes.yaml:1: sm-base-two: {message}"])


def test_a_case_that_is_not_known_to_kill_what_it_is_meant_for_is_found(copy: Path):
    edit = ("cases/softmax.yaml", "meant_for: [softmax-whole-array]", "meant_for: [softmax-whole-array, scale-missing]")
    found = fresh(copy, edit)
    where = line(copy, "cases/softmax.yaml", "- id: sm-several-rows")
    message = "scale-missing is not among its kills: run goldformer mistakes scale-missing --matrix --write"
    assert found == [f"cases/softmax.yaml:{where}: sm-several-rows.meant_for: {message}"]


def test_a_refusal_that_no_clause_asks_for_is_found(copy: Path):
    file = "cases/single_head_attention.yaml"
    where = line(copy, file, "- id: sha-w-q-missing")
    found = fresh(copy, (file, "title: The query weight is missing\n    clauses: [SHA-4]",
                         "title: The query weight is missing\n    clauses: [SHA-1, PE-7]"))  # fmt: skip
    message = "SHA-1, PE-7 asks for no refusal: cite a clause that says what 'is an error', such as CALL-8"
    listed = "contracts/single_head_attention.yaml:1: clauses: is missing PE-7, which its checks show: add it"
    assert found == [listed, f"{file}:{where}: sha-w-q-missing.clauses: {message}"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("proof: [sha-java-three-tokens]\n    digits", "proof: [sha-nowhere]\n    digits",
         "is proven by 'sha-nowhere', which is no case and no property"),
        ("{case: sha-java-three-tokens, output: weights,", "{case: sha-java-three-tokens, output: wheights,",
         "sha-java-three-tokens prints no wheights"),
        ("{case: sha-java-three-tokens, output: weights,", "{case: sha-nowhere, output: weights,",
         "sha-nowhere prints no weights"),
    ],
    ids=["unknown proof", "unknown output", "unknown case"],
)  # fmt: skip
def test_an_erratum_that_nothing_proves_is_found(copy: Path, old, new, message):
    found = fresh(copy, ("errata.yaml", old, new))
    assert f"errata.yaml:{line(copy, 'errata.yaml', '- id: java-softmax')}: java-softmax: {message}" in found


def test_an_erratum_whose_proof_shows_something_else_is_found(copy: Path):
    found = fresh(copy, ("errata.yaml", "clauses: [SM-1, SHA-2]", "clauses: [SM-3, SM-4]"))
    where = line(copy, "errata.yaml", "- id: java-softmax")
    message = "its proofs (sha-java-three-tokens) show no clause of it (SM-3, SM-4)"
    assert found == [f"errata.yaml:{where}: java-softmax: {message}"]


PRINTED = 'scores: [["7", "2", "11"]'
WRONG = [
    ('scores: [["7", "2", "11"]', 'scores: [["8", "2", "11"]', "scores[0, 0]", "8", "7"),
    ('"0.002", "0.943"]', '"0.002", "0.944"]', "weights[0, 2]", "0.944", "0.94266"),
    ('output: [["3.94", "1.06"]', 'output: [["3.940", "1.06"]', "output[0, 0]", "3.940", "3.93941"),
    ('value: [["3", "2"]', 'value: [["-3", "2"]', "value[0, 0]", "-3", "3"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "text", "value"), WRONG, ids=[w[2] for w in WRONG])
def test_printed_digits_that_disagree_need_an_erratum(copy: Path, old, new, where, text, value):
    found = fresh(copy, (JAVA, old, new))
    message = f"prints {text}, the true value is {value}: correct it, or add an erratum"
    assert found == [f"{JAVA}:4: sha-java-three-tokens.printed.{where}: {message}"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('output: [["3.94", "1.06"]', 'output: [["3.94", "1.0557"]'),
        ('output: [["3.94", "1.06"]', 'output: [["4", "1"]'),
        ('"0.002", "0.943"]', '"0.0016", ".94266"]'),
    ],
    ids=["more digits", "fewer digits", "no leading zero"],
)
def test_printed_digits_agree_within_half_a_unit_of_the_last_one(copy: Path, old, new):
    assert fresh(copy, (JAVA, old, new)) == []


def test_an_erratum_of_a_digit_that_is_right_is_found(copy: Path):
    found = fresh(copy, ("errata.yaml", "output: weights, indices: [[0, 0],", "output: weights, indices: [[0, 1],"))
    where = line(copy, "errata.yaml", "- id: java-softmax")
    assert sorted(found) == [
        f"{JAVA}:4: sha-java-three-tokens.printed.weights[0, 0]: "
        "prints 0.055, the true value is 0.0557166: correct it, or add an erratum",
        f"errata.yaml:{where}: java-softmax: "
        "sha-java-three-tokens weights[0, 1] prints 0.002, which is right (0.00162376)",
    ]


# An erratum once might excuse a place that the document does not print.
def test_an_erratum_of_a_digit_that_is_not_printed_is_found(copy: Path):
    found = fresh(copy, ("errata.yaml", "weights, indices: [[0, 0],", "weights, indices: [[9, 9], [0, 0],"))
    assert [problem.split(": ")[1] for problem in found] == ["java-softmax"]


# Each once ended in a ValueError out of lint(), and `goldformer lint` in a traceback.
@pytest.mark.parametrize(
    "new",
    ['[["7", "2"], ["3", "1"]', '[["7", "2", "11", "0"]', '[["seven", "2", "11"]'],
    ids=["shape", "ragged", "word"],
)
def test_printed_digits_that_do_not_fit_are_found(copy: Path, new):
    [found] = fresh(copy, (JAVA, PRINTED, f"scores: {new}"))
    assert re.match(rf"{JAVA}:\d+: sha-java-three-tokens.printed.scores", found)


def test_equal_sizes_without_a_reason_are_found(copy: Path):
    reason = "    equal_sizes: self-attention, so both lengths are one\n"
    found = fresh(copy, ("cases/causal_mask.yaml", reason, ""))
    message = "q_seq and kv_seq are both 4; say why in equal_sizes"
    assert found == [f"cases/causal_mask.yaml:4: mask-causal-4.sizes: {message}"]


@pytest.mark.parametrize(
    ("lead", "sizes", "said"),
    [
        ((3, 2), {"n": 2}, "n and lead[1] are both 2"),
        ((3, 3), {"n": 2}, "lead[0] and lead[1] are both 3"),
        ((2,), {"n": 5, "m": 5}, "n and m are both 5"),
        ((1, 1), {"n": 1}, None),
        ((3, 2), {"n": 5, "m": 1, "k": 1}, None),
    ],
)
def test_leading_axes_are_sizes_and_ones_are_no_clash(spec: Spec, lead, sizes, said):
    case = replace(spec.cases["sm-several-rows"], lead=lead, sizes=sizes)
    assert sizes_problems(spec, case) == ([f"{said}; say why in equal_sizes"] if said else [])


def sizes_problems(spec: Spec, case: Case) -> list[str]:
    return [p.message for p in lint(replace(spec, cases={case.id: case})) if "sizes" in p.field]


def test_counts_are_sizes_whether_an_axis_is_that_long_or_not(spec: Spec):
    steps = replace(spec.cases["shas-three-steps-causal"], equal_sizes=None)
    assert sizes_problems(spec, steps) == ["d_model and steps are both 3; say why in equal_sizes"]
    heads = replace(spec.cases["encs-one-layer"], equal_sizes=None, sizes={"batch": 2, "seq": 3})
    assert sizes_problems(spec, heads) == ["batch and heads are both 2; say why in equal_sizes"]


def test_a_seed_and_an_id_are_no_sizes(spec: Spec):
    case = spec.cases["shift-one-token"]
    case = replace(case, sizes={"batch": 9, "seq": 1})
    assert case.attributes == {"bos_id": 9}
    assert sizes_problems(spec, case) == []


def test_a_way_of_being_called_that_no_case_visits_is_found(spec: Spec):
    forwards = {case.id: case for case in spec.cases_of("softmax") if case.cotangent is None}
    assert [*rules._list_empty_squares(spec)] == []
    (found,) = rules._list_empty_squares(replace(spec, cases=forwards))
    assert "cases/softmax.yaml:1: softmax: must have a case for each way of being called" in str(found)
    assert "cotangent-strided, cotangent-transposed: add a case that such a call fits" in str(found)


def test_an_edge_that_no_case_visits_is_found(spec: Spec):
    assert [*rules._list_unvisited_edges(spec)] == []
    others = {id_: case for id_, case in spec.cases.items() if id_ not in ("dom-one-head", "mask-padding-one-token")}
    padding, model = rules._list_unvisited_edges(replace(spec, cases=others))
    assert "must have a case for each edge of its contract or an excuse, not both: num_heads least: add a" in str(model)
    assert "batch = 1, seq = 1: add a case, or list the edge with a reason in spec/edges.yaml" in str(padding)


def test_a_reason_for_equal_sizes_where_none_are_equal_is_found(spec: Spec):
    case = replace(spec.cases["sm-several-rows"], equal_sizes="both are short")
    assert sizes_problems(spec, case) == ["gives a reason, but no two sizes are equal: leave it out"]


# ── the shipped spec ──


def test_every_must_is_shown_and_every_clause_named_by_a_case_exists(spec: Spec):
    proofs = {id_: covered.proofs.ids for id_, covered in cover(spec).clauses.items()}
    musts = {id_ for id_, clause in spec.clauses.items() if clause.level is Level.MUST}
    assert len(musts) > 40
    assert {id_ for id_ in musts if not proofs[id_]} <= EVERY_CALL <= musts


def test_there_are_files_and_every_one_is_read(spec: Spec):
    for folder, at_least in (("cases", 9), ("contracts", 9), ("golden", 9)):
        stems = {path.stem for path in (ROOT / folder).iterdir()}
        assert len(stems) >= at_least
        assert stems <= set(spec.contracts)
    assert {case.component for case in spec.cases.values()} == {path.stem for path in (ROOT / "cases").glob("*.yaml")}


def test_there_are_enough_cases_of_every_sort(spec: Spec):
    cases = spec.cases.values()
    derived = [case for case in cases if case.golden]
    assert len(derived) >= 80
    assert sum(case.error is not None for case in cases) >= 30
    assert any(case.shape_only for case in cases)
    assert any(
        array.indices for case in derived for out in case.golden.options.values() for array in (out or {}).values()
    )
    # Whoever asks for values has them, and nobody else.
    assert {c.id for c in derived} == {c.id for c in cases if c.error is None and not c.shape_only}
    for component in {case.component for case in cases}:
        assert sum(case.golden is not None for case in spec.cases_of(component)) >= 3, component


def golden(spec: Spec, case: str, output: str, option: str = "") -> np.ndarray:
    return spec.cases[case].golden.options[option][output].values


HAND = [
    ("sdpa-walkthrough-3x2", "weights", "", 4,
     [[0.3980, 0.2957, 0.3063], [0.3507, 0.3132, 0.3361], [0.1355, 0.4475, 0.4170]]),
    ("sdpa-walkthrough-3x2", "output", "", 4, [[0.5403, -0.1357], [0.5095, -0.0141], [0.2436, 0.5508]]),
    ("sdpa-primer-batched", "scores", "", 15, [[[4, 5, 5], [2, 2, 3]]]),
    ("sdpa-primer-batched", "scaled_scores", "", 15, [[[2, 2.5, 2.5], [1, 1, 1.5]]]),
    ("sdpa-primer-batched", "weights", "", 4, [[[0.2327, 0.3837, 0.3837], [0.2741, 0.2741, 0.4519]]]),
    ("sdpa-java-three-tokens", "scores", "", 15, [[7, 2, 11], [3, 1, 4], [6, 1, 13]]),
    ("sha-java-three-tokens", "weights", "", 4,
     [[0.0557, 0.0016, 0.9427], [0.3057, 0.0743, 0.6200], [0.0070, 0.0002, 0.9928]]),
    ("sha-java-three-tokens", "output", "", 4, [[3.9394, 1.0557], [3.4713, 1.3057], [3.9924, 1.0070]]),
    ("sha-java-three-tokens-causal", "weights", "", 4, [[1, 0, 0], [0.8044, 0.1956, 0], [0.0070, 0.0002, 0.9928]]),
    ("pe-walkthrough-4x4", "output", "interleaved", 15,
     [[[f(t / w) for w in (1, 100) for f in (math.sin, math.cos)] for t in range(4)]]),
    ("pe-walkthrough-4x4", "output", "concatenated", 15,
     [[[f(t / w) for f in (math.sin, math.cos) for w in (1, 100)] for t in range(4)]]),
    ("pe-walkthrough-4x4", "output", "tensor2tensor", 15,
     [[[f(t / w) for f in (math.sin, math.cos) for w in (1, 10000)] for t in range(4)]]),
    ("mask-causal-4", "mask", "", 0, [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]),
    ("sm-one-row-by-hand", "output", "", 15,
     [math.exp(s) / (1 + math.e + math.exp(3)) for s in (0, 1, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "output", "option", "digits", "numbers"), HAND)
def test_golden_values_are_the_figures_of_the_documents(spec: Spec, case, output, option, digits, numbers):
    values = golden(spec, case, output, option)
    assert values.shape == np.shape(numbers)
    np.testing.assert_allclose(values.astype(float), numbers, rtol=0, atol=0.5 * 10.0**-digits)


def test_position_one_of_width_four_is_sine_and_cosine_of_1_and_a_hundredth(spec: Spec):
    row = golden(spec, "pe-walkthrough-4x4", "output", "interleaved")[0, 1]
    assert row.tolist() == pytest.approx([math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)], abs=1e-16)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, r"^\d+ clauses, \d+ cases \(\d+ with golden values, \d+ refusals\), .*: no problems\n$"),
        (1, r"(?s)^{root}/transformer.md:\d+: SDPA-2: is a MUST that no case.*: \d+ problems\n$"),
        (2, r"^goldformer: {root}/cases/softmax.yaml:1: file: is empty\n$"),
    ],
)
def test_the_command_says_what_it_found_and_exits_accordingly(copy: Path, monkeypatch, status, said):
    """The shipped spec has no problem; the copy, short of cases, has some; the copy with an empty file is unusable."""
    if status == 2:
        (copy / "cases/softmax.yaml").write_text("", encoding="utf-8")
    if status == 0:
        # The test below looks for blind cases in a sample of components: in all of them, that takes a minute.
        monkeypatch.setattr(rules, "find_vacuous", lambda spec: iter(()))
    result = CliRunner().invoke(main, ["lint", *(["--spec", str(copy)] if status else [])])
    assert result.exit_code == status, result.output
    assert re.search(said.replace("{root}", re.escape(str(copy.resolve()))), result.output), result.output


@pytest.mark.sample(2)
@pytest.mark.parametrize("component", load_spec().components)
def test_no_shipped_case_is_blind_to_an_argument_without_saying_so(spec: Spec, component):
    cases = {case.id: case for case in spec.cases_of(component)}
    assert [str(problem) for problem in find_vacuous(replace(spec, cases=cases))] == []
