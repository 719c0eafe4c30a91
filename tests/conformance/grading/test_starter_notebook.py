"""A starter as a notebook: a cell for each definition, a check at its end, and a submission that earns its points."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.commands.assignment import READY
from goldformer.conformance.grading.starter_notebook import make_notebook, name_notebook
from kernels import run_notebook

STARTER = '''"""Softmax: fill it in, and hand in this file as submission.py.

Shapes are written like (…, n).
"""

import math
import numpy as np

# ── given ──

LARGEST = 80
SMALL = 1e-3


# Used by both.
@np.vectorize
def half(x):
    return x / 2


# ── yours ──


def softmax(scores):
    """Compute it."""
    raise NotImplementedError
'''


def read_cells(raw: bytes):
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(raw)["cells"]]


def test_each_definition_has_a_cell_and_each_section_a_heading():
    cells = read_cells(make_notebook(STARTER, "adapter.py"))
    assert cells[:-2] == [
        (
            "markdown",
            "# Softmax\n\nFill it in, and hand in this file as submission.ipynb.\n\nShapes are written like (…, n).",
        ),
        ("code", "import math\nimport numpy as np"),
        ("markdown", "## Given"),
        ("code", "LARGEST = 80\nSMALL = 1e-3"),
        ("code", "# Used by both.\n@np.vectorize\ndef half(x):\n    return x / 2"),
        ("markdown", "## Yours"),
        ("code", 'def softmax(scores):\n    """Compute it."""\n    raise NotImplementedError'),
    ]
    assert cells[-1][1].splitlines()[-2:] == [
        'sys.modules["submission"] = sys.modules["__main__"]',
        'goldformer.check("adapter.py")',
    ]


@pytest.mark.parametrize("kind", ["attention", "embedding", "transformer"])
def test_nothing_of_a_ready_starter_is_lost(kind):
    starter = (READY / kind / "starter.py").read_text(encoding="utf-8")
    code = "\n".join(text for kind, text in read_cells(make_notebook(starter, "adapter.py"))[:-1] if kind == "code")
    assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(ast.parse(starter).body[1:], []))


def test_the_same_starter_makes_the_same_notebook():
    assert make_notebook(STARTER, "adapter.py") == make_notebook(STARTER, "adapter.py")
    nbformat.validate(nbformat.reads(make_notebook(STARTER, "adapter.py").decode(), as_version=4))


def test_a_starter_without_a_text_gets_a_title():
    assert read_cells(make_notebook("def f(x):\n    pass\n", "adapter.py"))[:2] == [
        ("markdown", "# Your code"),
        ("code", "def f(x):\n    pass"),
    ]


def test_the_page_for_students_names_the_notebook():
    page = "Copy `starter.py`:\n\n    goldformer check adapter.py\n\nHand in `submission.py`. `--component softmax`\n"
    assert name_notebook(page) == (
        "Copy `starter.ipynb`:\n\n"
        "    jupyter lab submission.ipynb     # run all cells: the last one checks the others\n\n"
        'Hand in `submission.ipynb`. `goldformer.check("adapter.py", "softmax")`\n'
    )


def fill_in(raw: bytes, solution: str) -> bytes:
    """Return a notebook in which each function and class is that of the solution, with its imports and helpers."""
    notebook = json.loads(raw)
    tree = ast.parse(solution)
    written = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imports = "\n".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        for name, node in written.items():
            if cell["cell_type"] == "code" and text.startswith((f"def {name}(", f"class {name}(")):
                cell["source"] = f"{imports}\n{ast.unparse(node)}"
    return json.dumps(notebook).encode()


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A folder with the assignment as a notebook, and a student's."""
    folder: Path = tmp_path_factory.mktemp("course")
    result = CliRunner().invoke(main, ["assignment", "new", str(folder), "--kind", "embedding", "--notebook"])
    assert result.exit_code == 0, result.output
    assert "give students README.md, starter.ipynb and adapter.py; keep solution.py" in result.stdout
    handed = fill_in((folder / "starter.ipynb").read_bytes(), (folder / "solution.py").read_text(encoding="utf-8"))
    (folder / "class").mkdir()
    (folder / "class" / "ada.ipynb").write_bytes(handed)
    (folder / "class" / "bob.ipynb").write_bytes((folder / "starter.ipynb").read_bytes())
    return folder


def test_the_assignment_names_its_starter_and_is_checked_with_it(course):
    assert sorted(path.name for path in course.iterdir() if path.is_file()) == [
        "README.md", "adapter.py", "assignment.yaml", "solution.py", "starter.ipynb",
    ]  # fmt: skip
    assert "starter.py" not in (course / "README.md").read_text(encoding="utf-8")
    result = CliRunner().invoke(main, ["assignment", "check", str(course / "assignment.yaml")])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-2:] == ["solution.py earns all points", "the starter earns no points"]


def test_its_last_cell_checks_what_the_cells_define(course):
    card = run_notebook(course / "class" / "ada.ipynb", course)[-1]["data"]["text/plain"]
    assert card.startswith("✓ submission: conforms · 3 components"), card


def test_it_is_graded_as_it_was_handed_in(course):
    results = course / "results"
    command = ["grade", str(course / "class"), "--assignment", str(course / "assignment.yaml"), "--out", str(results)]
    result = CliRunner().invoke(main, [*command, "--require-isolation", "process", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    book = json.loads((results / "grades.json").read_text(encoding="utf-8"))
    assert {student["id"]: student["earned"] for student in book["students"]} == {"ada": 100.0, "bob": 0.0}
