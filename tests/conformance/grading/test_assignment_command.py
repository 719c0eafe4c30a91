"""goldformer assignment: what it writes conforms, its starter earns nothing, and what is wrong is said."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.commands.assignment import READY, READY_KINDS, read_ready
from goldformer.conformance.grading.assignment import read_assignment
from goldformer.conformance.grading.starter import make_starter

FILES = ["README.md", "adapter.py", "assignment.yaml", "solution.py", "starter.py"]

#: Softmax alone, so that what is wrong with an assignment shows in no time.
SMALL = "title: Softmax\nstarter: starter.py\ncomponents: {softmax: 10}\nfresh: {cases: 1, seed: mine}\n"
ADAPTER = 'import submission\n\nARRAYS = "torch"\n\n\ndef softmax(scores):\n    return submission.softmax(scores)\n'
STARTER = "def softmax(scores):\n    raise NotImplementedError\n"
SOLUTION = (
    "def softmax(scores):\n    powers = (scores - scores.max(-1, keepdim=True).values).exp()\n"
    "    return powers / powers.sum(-1, keepdim=True)\n"
)


def assignment(*arguments):
    return CliRunner().invoke(main, ["assignment", *map(str, arguments)])


@pytest.fixture
def small(tmp_path: Path):
    """The path of a small assignment, in which some files have other texts."""

    def write(**texts: str) -> Path:
        files = {"assignment.yaml": SMALL, "adapter.py": ADAPTER, "starter.py": STARTER, "solution.py": SOLUTION}
        for name, text in (files | {name.replace("_", "."): text for name, text in texts.items()}).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / "assignment.yaml"

    return write


def test_a_memory_limit_below_what_the_library_takes_is_said_before_grading(small):
    result = assignment("check", small(assignment_yaml=f"{SMALL}limits: {{memory: 100}}\n"))
    assert result.exit_code == 2
    assert re.search(r"limits\.memory is 100 MiB, and \w+ alone takes \d+ MiB .*: give at least \d+", result.stderr)


# ── new ──


def test_each_ready_folder_is_a_kind():
    assert READY_KINDS == ["attention", "decoder-only", "embedding", "transformer"]


@pytest.mark.parametrize("kind", READY_KINDS)
def test_it_writes_what_a_course_needs_and_says_what_next(kind, tmp_path):
    result = assignment("new", tmp_path / "course" / "week", "--kind", kind)
    folder = tmp_path / "course" / "week"
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"wrote {', '.join(FILES)} into {folder}",
        f"now run: goldformer assignment check {folder / 'assignment.yaml'}",
        "fill in, in README.md, where students install goldformer from: $GOLDFORMER_SOURCE and $GOLDFORMER_COMMIT",
        "give students README.md, starter.py and adapter.py; keep solution.py and assignment.yaml",
    ]
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_what_a_killed_run_left_is_completed(tmp_path):
    assert assignment("new", tmp_path).exit_code == 0
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("assignment.yaml", "solution.py"):
        (tmp_path / name).unlink()
    assert assignment("new", tmp_path).exit_code == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole
    assert assignment("new", tmp_path).exit_code == 2


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "solution.py").write_text("mine", encoding="utf-8")
    result = assignment("new", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"goldformer: {tmp_path / 'solution.py'} exists: give another folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["solution.py"]
    assert (tmp_path / "solution.py").read_text(encoding="utf-8") == "mine"


def test_another_kind_is_2_and_all_are_listed(tmp_path):
    result = assignment("new", tmp_path, "--kind", "compiler")
    assert result.exit_code == 2
    assert all(f"'{kind}'" in result.stderr for kind in READY_KINDS)


@pytest.mark.parametrize("kind", READY_KINDS)
def test_the_starter_raises_where_the_solution_is_marked(kind):
    marked, starter = (read_ready(kind)[name].decode() for name in ("solution.py", "starter.py"))
    assert "SOLUTION" not in starter
    assert starter.count("raise NotImplementedError\n") == marked.count("# BEGIN SOLUTION: raise NotImplementedError\n")


def test_marked_lines_are_left_out_or_replaced():
    marked = """# BEGIN SOLUTION
import math
# END SOLUTION
def f(x):
    y = 2 * x
    # BEGIN SOLUTION: return 0  # yours
    return math.exp(y)
    # END SOLUTION
"""
    assert make_starter(marked) == "def f(x):\n    y = 2 * x\n    return 0  # yours\n"


# ── the ready ones ──


@pytest.mark.parametrize("kind", READY_KINDS)
def test_points_sum_to_a_hundred_and_students_are_told_them(kind, spec, tmp_path):
    assignment("new", tmp_path, "--kind", kind)
    read = read_assignment(tmp_path / "assignment.yaml", spec)
    assert read.points == 100
    rows = [line for line in (READY / kind / "README.md").read_text(encoding="utf-8").splitlines() if "| `" in line]
    told = [float(line.split("|")[2]) for line in rows]
    assert told == [part.points for part in read.parts]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", READY_KINDS)
def test_a_ready_one_conforms_in_every_published_case(kind, tmp_path):
    assignment("new", tmp_path, "--kind", kind)
    path = tmp_path / "assignment.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("fresh: {cases: 4}", "fresh: {cases: 0}"), encoding="utf-8")
    result = assignment("check", path)
    assert result.stdout.splitlines()[-2:] == ["solution.py earns all points", "the starter earns no points"]
    assert result.stderr == (
        "Warning: there are no fresh cases: code that answers the published ones from a table earns all points\n"
    )
    assert result.exit_code == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["attention", "decoder-only", "embedding"])
def test_what_is_not_asked_of_students_fails_nothing_that_they_run(kind, tmp_path, monkeypatch):
    assignment("new", tmp_path, "--kind", kind)
    (tmp_path / "solution.py").rename(tmp_path / "submission.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "submission", raising=False)
    result = CliRunner().invoke(main, ["check", "adapter.py", "-q"])
    assert result.exit_code == 0, result.output


def test_both_results_of_attention_are_asked_for(tmp_path):
    assignment("new", tmp_path)
    path = tmp_path / "assignment.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("cases: 4", "cases: 0"), encoding="utf-8")
    right = (tmp_path / "solution.py").read_text(encoding="utf-8")
    output_alone = right.replace("return weights @ value, weights", "return weights @ value")
    (tmp_path / "solution.py").write_text(output_alone, encoding="utf-8")
    result = assignment("check", path)
    assert result.exit_code == 1
    assert "raised TypeError: return both the output and the weights: return output, weights" in result.stdout


@pytest.mark.parametrize(("returned", "required"), [("weights @ value, weights", True), ("weights @ value", False)])
def test_what_submissions_have_to_return_is_said(returned, required, small):
    attention = "scaled_dot_product_attention"
    solution = f"""def {attention}(query, key, value, mask=None, **more):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    weights = scores.softmax(-1) if mask is None else scores.masked_fill(~mask, -1e9).softmax(-1)
    return {returned}
"""
    result = assignment(
        "check",
        small(
            assignment_yaml=SMALL.replace("softmax", attention).replace("cases: 1", "cases: 0"),
            adapter_py=ADAPTER.replace("softmax(scores)", f"{attention}(**given)").replace("softmax", attention),
            starter_py=STARTER.replace("softmax(scores)", f"{attention}(**given)"),
            solution_py=solution,
        ),
    )
    said = f"submissions have to return what solution.py returns: {attention} (output, weights)"
    assert (said in result.stdout.splitlines()) is required


def test_a_ready_one_conforms_in_fresh_cases(tmp_path):
    assignment("new", tmp_path, "--kind", "embedding")
    result = assignment("check", tmp_path / "assignment.yaml")
    assert (result.exit_code, result.stderr) == (0, "")
    fresh = [line.split()[-3:] for line in result.stdout.splitlines()[2:5]]
    assert [(passed, int(number) >= 8) for passed, _, number in fresh] == [(number, True) for _, _, number in fresh]


# ── check ──


def published(spec, *without):
    """Return the number of published checks that count in two dtypes: a refusal earns nothing."""
    return 2 * sum(case.error is None and case.id not in without for case in spec.cases_of("softmax"))


def test_a_right_one_is_0_and_says_what_was_judged(small, spec):
    result = assignment("check", small())
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "Softmax: 10 points, in float64 and float32"
    count = published(spec)
    assert lines[2].split() == f"softmax 10 {count} of {count} 6 of 6".split()
    assert lines[3].startswith(f"{2 * (count + 6)} checks in ")  # those of the solution and of the starter
    assert re.fullmatch(r"a submission may use \d+ MiB of memory; \w+ alone takes \d+ MiB here", lines[4])
    assert lines[5:] == ["solution.py earns all points", "the starter earns no points"]


def test_a_component_that_the_adapter_has_and_nobody_asks_for_is_warned_of(small):
    """Whoever drops a component from the assignment forgets the adapter, and right solutions fail at home."""
    more = "\n\ndef padding_mask(ids, *, pad_id):\n    return submission.padding_mask(ids, pad_id)\n"
    result = assignment("check", small(adapter_py=ADAPTER + more))
    assert result.exit_code == 0
    said = "Warning: adapter.py has padding_mask, which components does not ask for: delete this there"
    assert said in " ".join(result.stderr.split())


def test_a_kind_of_case_that_a_table_can_answer_is_reported(small):
    adapter = (
        'import submission\n\nARRAYS = "torch"\n\n\n'
        "def kl_divergence(target, logits):\n    return submission.kl_divergence(target, logits)\n"
    )
    solution = (
        "import torch.nn.functional as F\n\n\ndef kl_divergence(target, logits):\n"
        '    return F.kl_div(F.log_softmax(logits, -1), target, reduction="none").sum(-1)\n'
    )
    texts = {"adapter_py": adapter, "solution_py": solution, "starter_py": STARTER.replace("softmax(scores)", "f(x)")}
    result = assignment("check", small(assignment_yaml=SMALL.replace("softmax", "kl_divergence"), **texts))
    said = "kl_divergence: no fresh case is like these published ones, which a table can answer: 1 of gradients"
    assert said in " ".join(result.stderr.split())


def test_a_solution_that_is_wrong_is_1_and_its_failures_are_listed(small, spec):
    result = assignment(
        "check", small(solution_py=SOLUTION.replace("scores - scores.max(-1, keepdim=True).values", "scores"))
    )
    assert result.exit_code == 1
    assert "sm-a-thousand" in result.stdout
    right, count, fresh_right, fresh = map(int, re.findall(r"(\d+) of (\d+) +(\d+) of (\d+)", result.stdout)[0])
    assert (count, fresh) == (published(spec), 6)
    assert right < count
    fails = count - right + fresh - fresh_right
    assert f"solution.py fails {fails} checks: fix it, or leave them out with `without`" in result.stdout
    assert "earns all points" not in result.stdout


def test_what_a_solution_has_not_written_fails(small, spec):
    result = assignment("check", small(solution_py=STARTER))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2].split() == f"softmax 10 0 of {published(spec)} 0 of 6".split()


def test_a_starter_that_earns_points_is_1(small):
    result = assignment("check", small(starter_py=SOLUTION))
    assert result.exit_code == 1
    assert "the starter earns points for softmax: leave out what students are to write" in result.stdout


def test_another_solution_may_be_named(small, tmp_path):
    path = small(solution_py=STARTER)
    (tmp_path / "mine.py").write_text(SOLUTION, encoding="utf-8")
    result = assignment("check", path, "--solution", tmp_path / "mine.py")
    assert result.exit_code == 0
    assert "mine.py earns all points" in result.stdout


def test_a_component_of_which_nothing_is_judged_is_warned_of(small):
    result = assignment("check", small(adapter_py=ADAPTER + '\n\nDTYPES = ("float16",)\n'))
    assert result.exit_code == 1
    assert "Warning: softmax: nothing is judged in float64 or float32, so nobody can earn its points" in result.stderr
    assert "solution.py earns nothing for softmax" in result.stdout


def test_fewer_fresh_cases_than_asked_for_are_warned_of(small):
    text = SMALL + "without: [sm-s*, sm-f*, sm-t*, sm-a*, sm-l*, sm-g*, sm-e*, sm-no*, sm-one-s*, sm-one-r*]\n"
    result = assignment("check", small(assignment_yaml=text))
    assert "Warning: softmax has fewer fresh cases: 0 of 1: no published case can be drawn again" in result.stderr


def test_fresh_cases_are_drawn_from_what_is_left_in(small, spec):
    result = assignment("check", small(assignment_yaml=SMALL + "without: [sm-gradient, sm-no-elements]\n"))
    assert result.exit_code == 0
    count = published(spec, "sm-gradient", "sm-no-elements")
    assert result.stdout.splitlines()[2].split() == f"softmax 10 {count} of {count} 4 of 4".split()


def test_a_property_can_be_left_out(small):
    weighed = SMALL.replace("{softmax: 10}", "{softmax: {points: 10, properties: 1}}")
    counts = []
    for text in (weighed, weighed + "without: [sm-sh*]\n"):
        result = assignment("check", small(assignment_yaml=text))
        assert result.exit_code == 0
        counts.append(int(result.stdout.split(" checks in ")[0].split()[-1]))
    assert counts[0] > counts[1]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (
            {"adapter_py": ADAPTER.replace("def softmax", "def soft_max")},
            "the assignment's adapter has no softmax, which components asks for: write a function of that name",
        ),
        ({"solution_py": "import nothing_of_that_name\n"}, "solution.py could not be imported: ModuleNotFoundError"),
        ({"solution_py": "raise SystemExit(3)\n"}, "solution.py could not be imported: SystemExit: 3"),
        ({"adapter_py": "import submission\n"}, "ARRAYS is missing"),
        ({"assignment_yaml": SMALL.replace("softmax", "sofmax")}, "assignment.yaml:3: components.sofmax: unknown"),
    ],
)
def test_what_cannot_be_used_is_2(texts, says, small):
    result = assignment("check", small(**texts))
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_a_solution_that_is_not_there_is_2(small, tmp_path):
    path = small()
    (tmp_path / "solution.py").unlink()
    result = assignment("check", path)
    assert result.exit_code == 2
    assert (
        result.stderr
        == f"goldformer: {tmp_path / 'solution.py'}: no such Python file; --solution FILE names another one\n"
    )
