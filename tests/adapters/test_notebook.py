"""Notebooks as Python source: what is kept of their cells, and the names of cells in messages."""

from __future__ import annotations

import json
import time
import warnings

import nbformat
import pytest

import goldformer
from goldformer.adapters import AdapterError, find_adapter
from goldformer.adapters.notebook import CellNames, NotebookError, read_notebook, run_cells, write_source
from goldformer.spec import load_spec


def notebook(*cells, tagged=()):
    made = [nbformat.v4.new_markdown_cell("# A lab")]
    made += [nbformat.v4.new_code_cell(source) for source in cells]
    for number in tagged:
        made[number].metadata["tags"] = ["goldformer"]
    return nbformat.writes(nbformat.v4.new_notebook(cells=made)).encode()


def kept(*cells, **options):
    return [cell.text for cell in read_notebook(notebook(*cells, **options), "lab.ipynb")]


SOFTMAX = """\
def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1)[..., None]"""

#: Cells of which everything is kept.
KEPT = (
    "class A(B):\n    x = f()",
    "WIDTH: int = 2 * 4\nw, h = 3, 4\nrun = lambda x: f(x)",
    "try:\n    import torch\nexcept ImportError:\n    torch = None",
    "if WIDTH > 3:\n    K = 1\nelse:\n    K = 2",
    "a = ('one'\n% b)",
    "",
)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("import math\nx = f(3)\ny = 3", "import math\n\ny = 3"),
        ("from a import b; print(b); c = 1", "from a import b; c = 1"),
        ("@cache\ndef f():\n    # why\n    return 1\nf()", "@cache\ndef f():\n    # why\n    return 1\n"),
        ("if __name__ == '__main__':\n    main()", "\n"),
        ("for i in range(3):\n    print(i)\nx[0] = 3", "\n\n"),
        ("%matplotlib inline\nimport math", "\nimport math"),
        ("!pip install torch\nfiles = !ls\nmath?\nimport math\n?math", "\n\n\nimport math\n"),
        ("if WIDTH:\n    %time f()\nimport math", "\n\nimport math"),
        ("%%time\nimport math\nf()", "\nimport math\n"),
        ("%%bash\nrm -r x", ""),
        ("await f()\nimport math", "\nimport math"),
        ("é = 1; f(); ü = 2", "é = 1; ü = 2"),
        # Python ends no line at a form feed or a separator of Unicode, as str.splitlines does.
        ("\x0cx = 1\nf()\ny = 2", "x = 1\n\ny = 2"),
        ("s = '\u2028é\x85\x1c'; f(); t = 2", "s = '\u2028é\x85\x1c'; t = 2"),
        ("x = 1\rf()\r\ny = 2", "x = 1\n\ny = 2"),
        *zip(KEPT, KEPT, strict=True),
    ],
)  # fmt: skip
def test_imports_definitions_and_constants_are_kept_in_their_lines(cell, text):
    (found,) = kept(cell)
    assert found == text


def test_marked_cells_are_taken_whole_and_alone():
    assert kept("import math\nx = f()", "y = 2", tagged=[1]) == ["import math\nx = f()"]
    assert kept("z = 1", "# EXPORT\ny = f()") == ["\ny = f()"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"{}", "lab.ipynb is no notebook: "),
        (b"\xff\xfe", "lab.ipynb is no notebook: UnicodeDecodeError"),
        (b"[" * 100_000, "lab.ipynb is no notebook: RecursionError"),
        (
            notebook("import math", "x = 1\ndef f(:\n    pass"),
            "lab.ipynb, code cell 2, line 2: invalid syntax: def f(:",
        ),
        (notebook("x = '\0'"), "lab.ipynb, code cell 1, line 1: source code string cannot contain null bytes"),
        (
            notebook("x = 1").replace(b"x = 1", b"x = '\\ud800'"),
            "lab.ipynb, code cell 1, line 1: 'utf-8' codec can't encode character '\\ud800'",
        ),
        (
            notebook("x = 1\n" * 50_000),
            "lab.ipynb has more than 262144 characters of code: put what it needs into fewer cells",
        ),
    ],
)
def test_what_is_no_notebook_or_no_python_is_refused_with_its_cell(raw, says):
    with pytest.raises(NotebookError) as caught:
        read_notebook(raw, "lab.ipynb")
    assert str(caught.value).startswith(says)
    str(caught.value).encode()


def test_a_notebook_whose_cells_have_no_ids_is_read_without_a_warning():
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": "x = 1"}
    raw = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [cell.number for cell in read_notebook(raw, "lab.ipynb")] == [1]


def test_outputs_that_no_version_allows_cost_nothing():
    outputs = [{"unknown": n} for n in range(20_000)]
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": outputs, "source": "x = 1"}
    raw = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
    started = time.process_time()
    assert [cell.text for cell in read_notebook(raw, "lab.ipynb")] == ["x = 1"]
    assert time.process_time() - started < 1


def test_a_notebook_of_version_3_is_read():
    sheet = {"cells": [{"cell_type": "code", "input": ["x = 1\n", "f(x)"], "language": "python", "outputs": []}]}
    raw = json.dumps({"worksheets": [sheet], "metadata": {}, "nbformat": 3, "nbformat_minor": 0}).encode()
    assert [cell.text for cell in read_notebook(raw, "lab.ipynb")] == ["x = 1\n"]


def test_many_places_in_a_long_file_are_named_at_once():
    names = CellNames("# code cell 1\n" + "x = 1\n" * 20_000)
    started = time.process_time()
    named = names.add("submission.py:9000 " * 20_000, "submission.py")
    assert named == "submission.py:9000 (code cell 1, line 8999) " * 20_000
    assert time.process_time() - started < 1


def test_a_number_that_is_no_line_is_left_alone():
    said = f"submission.py:{'9' * 5000}"
    assert CellNames("# code cell 1\nx = 1\n").add(said, "submission.py") == said


def test_a_condition_may_have_any_number_of_branches():
    cell = "if 0:\n    x = 0\n" + "".join(f"elif {n}:\n    x = {n}\n" for n in range(1200))
    assert kept(cell, cell + "else:\n    print(x)\n") == [cell.rstrip("\n"), "\n" * 2401 + "\n" * 2]


def test_a_line_of_spaces_is_read_at_once():
    started = time.process_time()
    with pytest.raises(NotebookError, match="line 1: unexpected indent"):
        read_notebook(notebook(" " * 100_000 + "x\n)"), "lab.ipynb")
    assert time.process_time() - started < 1


def test_the_source_names_the_cell_of_each_line():
    cells = read_notebook(notebook("import math", "from __future__ import annotations\nx = 1\ny = 2"), "lab.ipynb")
    source = write_source(cells).decode()
    assert source == "from __future__ import annotations\n# code cell 1\nimport math\n# code cell 2\n\nx = 1\ny = 2\n"
    lines = source.splitlines()
    names = CellNames(source)
    assert [names.find(n) for n in (1, 2, 3, lines.index("y = 2") + 1)] == [
        "", "", "code cell 1, line 1", "code cell 2, line 3",
    ]  # fmt: skip
    said = 'File "submission.py", line 3, in f; submission.py:7: other.py:3'
    assert names.add(said, "submission.py") == (
        'File "submission.py", line 3 (code cell 1, line 1), in f; submission.py:7 (code cell 2, line 3): other.py:3'
    )
    escaped = json.dumps(said)
    assert json.loads(names.add(escaped, "submission.py")) == names.add(said, "submission.py")


def test_the_cells_run_in_one_module_in_their_order():
    module = run_cells(
        read_notebook(notebook("A = 1", "def f():\n    return A + B", "B = 2"), "lab.ipynb"), "lab.ipynb"
    )
    assert module.f() == 3


# as an implementation


@pytest.fixture
def lab(tmp_path):
    def write(*cells):
        path = tmp_path / "lab.ipynb"
        path.write_bytes(notebook(*cells))
        return path

    return write


def test_a_notebook_is_checked_without_running_it(lab):
    path = lab("import numpy as np\nopen('ran', 'w')", SOFTMAX, "1 / 0\nsoftmax(np.zeros(3))")
    assert find_adapter(str(path), load_spec()).arrays == "numpy"
    report = goldformer.check(path, "softmax")
    assert report, report
    assert not (path.parent / "ran").exists()
    path = lab("import numpy as np", SOFTMAX.replace(".max(-1, keepdims=True)", ".maximum()"))
    assert f"({path}, code cell 2:2, softmax)" in repr(goldformer.check(path, "softmax")).replace(
        "\n               ", " "
    )


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["import numpy as np\ndef f(:"], "{path}, code cell 1, line 2: invalid syntax: def f(:"),
        (["x = 1", "class A(Base):\n    pass"], "{path} could not be imported: NameError: name 'Base' is not defined"),
    ],
)
def test_a_notebook_that_cannot_be_loaded_names_the_cell(lab, cells, says):
    path = lab(*cells)
    with pytest.raises(AdapterError) as caught:
        find_adapter(str(path), load_spec())
    assert str(caught.value).startswith(says.format(path=path))
    assert f"code cell {len(cells)}" in str(caught.value)


def test_a_notebook_without_components_is_told_so(lab):
    report = goldformer.check(lab("x = 1"), "softmax")
    assert not report
    assert "nothing in it is named as a component" in " ".join(report.implementation.hints)


@pytest.mark.parametrize(("text", "says"), [("x = '\0'", r"null bytes: x = '\x00'"), ("x = '\ud800'", r"x = '\ud800'")])
def test_a_character_that_python_refuses_is_found_in_its_line(text, says):
    raw = notebook("import math\ny = 1\n?").decode().replace("?", json.dumps(text)[1:-1]).encode()
    with pytest.raises(NotebookError, match=r"lab\.ipynb, code cell 1, line 3: ") as raised:
        read_notebook(raw, "lab.ipynb")
    assert str(raised.value).endswith(says)
