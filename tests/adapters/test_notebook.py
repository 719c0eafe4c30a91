"""Notebooks as Python source: what is kept of their cells, and the names of cells in messages."""

from __future__ import annotations

import json
import time
import warnings

import nbformat
import pytest

import goldformer
from goldformer.adapters import AdapterError, find_adapter
from goldformer.adapters.notebook import (
    CellNames,
    NotebookError,
    explain_missing,
    read_notebook,
    read_source,
    run_cells,
    split_lines,
    write_source,
)
from goldformer.conformance.loading import load_implementation
from goldformer.spec import load_spec
from transcripts import PROGRAMS


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
        ("import math\nx = f(3)\ny = math.pi", "import math\n\ny = math.pi"),
        ("from a import b; print(b); c = b", "from a import b; c = b"),
        ("@cache\ndef f():\n    # why\n    return 1\nf()", "@cache\ndef f():\n    # why\n    return 1\n"),
        ("if __name__ == '__main__':\n    main()", "\n"),
        ("for i in range(3):\n    print(i)\nx[0] = 3", "\n\n"),
        ("%matplotlib inline\nx = 1", "\nx = 1"),
        ("!pip install torch\nfiles = !ls\nmath?\nx = 1\n?math", "\n\n\nx = 1\n"),
        ("if WIDTH:\n    %time f()\nx = 1", "\n\nx = 1"),
        ("%%time\nx = 1\nf()", "\nx = 1\n"),
        ("%%bash\nrm -r x", ""),
        ("await f()\nx = 1", "\nx = 1"),
        ("y = await f()\nasync with f() as z: pass\nx = 1", "\n\nx = 1"),
        ("é = 1; f(); ü = 2", "é = 1; ü = 2"),
        # Python ends no line at a form feed or a separator of Unicode, as str.splitlines does.
        ("\x0cx = 1\nf()\ny = 2", "x = 1\n\ny = 2"),
        ("s = '\u2028é\x85\x1c'; f(); t = 2", "s = '\u2028é\x85\x1c'; t = 2"),
        ("x = 1\rf()\r\ny = 2", "x = 1\n\ny = 2"),
        # IPython takes the spaces of the first line off every line that has them.
        ("  x = 1\n  def f():\n    return 1", "x = 1\ndef f():\n  return 1"),
        ("\n\n\tx = 1\ny = 2", "\n\nx = 1\ny = 2"),
        ("%%writefile submission.py\nx = 1\nf()", "\nx = 1\n"),
        ("%%file -a './submission.py'\nx = 1", "\nx = 1"),
        ("%%writefile other.py\nx = 1", ""),
        *zip(KEPT, KEPT, strict=True),
    ],
)  # fmt: skip
def test_imports_definitions_and_constants_are_kept_in_their_lines(cell, text):
    (found,) = kept(cell)
    assert found == text


@pytest.mark.parametrize(
    "import_",
    ["import seaborn", "import seaborn as sns", "import a.b", "from tqdm import (\n    tqdm,\n)", "from a import b, c"],
)
def test_an_import_that_nothing_kept_uses_is_left_out(import_):
    def f(b):
        return kept(f"{import_}\nsns.set(); tqdm(a.b)\ndef f(b):\n    tqdm = a = 'seaborn'\n    return {b}")

    (found,) = f("b")
    assert found.lstrip("\n").startswith("def f(b)")


@pytest.mark.parametrize(
    ("import_", "use"),
    [
        ("import a.b", "x = a.c"),
        ("import a as b", "def f(x=b): pass"),
        ("from a import b, c", "@c\ndef f(): pass"),
        ("from a import b", "class A(B, metaclass=b): pass"),
        ("from a import b", "class A:\n    x: 'list[b.C]' = 1"),
        ("from a import b", "def f(x: 'b') -> int: pass"),
        ("from __future__ import annotations\nfrom a import b", "def f() -> b: pass"),
        ("from a import b", "def f():\n    return lambda: [b for x in 'x']"),
        ("from a import b", "try:\n    import c\nexcept ImportError:\n    c = b"),
        ("from a import *", "x = 1"),
        ("from a import softmax", "x = 1"),
        ("from a import softmax_gradient as b, layer_norm", "x = 1"),
    ],
)
def test_an_import_that_something_kept_uses_or_that_is_a_component_is_kept(import_, use):
    assert kept(use, import_) == [use, import_]


def test_of_an_import_of_several_modules_what_is_used_is_kept():
    assert kept("import os, numpy as np, seaborn as sns; y = np.pi") == ["import numpy as np; y = np.pi"]


@pytest.mark.parametrize(
    "value",
    [
        "float('1e-9')", "-float('inf')", "int(2 ** 0.5)", "math.sqrt(2)", "[1] * len('abc')",
        "torch.device('cuda' if torch.cuda.is_available() else 'cpu')", "TypeVar('T')",
    ],
)  # fmt: skip
def test_a_constant_may_call_what_does_nothing_else(value):
    assert kept(f"x = {value}") == [f"x = {value}"]
    assert kept(f"x = f({value})") == [""]
    assert kept(f"x = {value.replace('(', '.f(', 1)}") == [""]


def test_what_needs_something_that_is_left_out_is_left_out_too():
    cells = [
        "x = f()\nA = make()",
        "y = x + 1; z = 1\nclass B(A):\n    pass",
        "def g(n=y):\n    return x",
        "def h(): return x",
    ]
    assert kept(*cells) == ["\n", "z = 1\n\n", "\n", "def h(): return x"]
    # Not if something kept binds it, or a name inside is another one.
    kept_later = [
        "x = f()",
        "x = 2",
        "y = x",
        "class C:\n    A = 1\n    B = A",
        "z = [A for A in (1, 2)]",
        "u = lambda: A",
    ]
    assert kept("A = make()", *kept_later) == ["", "", *kept_later[1:]]


@pytest.mark.parametrize(
    "changed",
    [
        "for i in range(3):\n    n += 1", "log[0] = f()", "n = f()", "log += f()", "n: int = f()", "(n := f())",
    ],
)  # fmt: skip
def test_a_constant_of_what_may_have_changed_is_left_out(changed):
    first = "n = 0; log = []; D = 4"
    assert kept(first, changed, "mean = log[-1] / n; H = D * 2", "def f(n=n): return n") == [
        first, "\n" * changed.count("\n"), "H = D * 2", "def f(n=n): return n",
    ]  # fmt: skip
    assert kept(first, changed, "n, log = 1, [2]", "mean = log[-1] / n")[2:] == [
        "n, log = 1, [2]",
        "mean = log[-1] / n",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "A.f = f", "A.f = A.g = f", "A.f, A.g = f, staticmethod(f)", "A.f = lambda self: f(self)", "A.n = 3",
        "setattr(A, 'f', f)", "f.n = 1", "if True:\n    A.f = f",
    ],
)  # fmt: skip
def test_an_attribute_of_a_definition_belongs_to_it(statement):
    cells = ["import torch", "class A: pass", "def f(self): return torch.f(self)", statement]
    assert kept(*cells) == cells


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("A.f = make(f)", "A.f"), ("A = make(A)", "A"), ("del A.f", "A.f"), ("A.f = lost", "A.f"), ("n += 1", "n"),
        ("d.n = 3", "d.n"), ("d['n'] = 3", "d"),
        ("torch.f = f", "torch.f"), ("[setattr(A, 'f', g) for g in (f,)]", "A.f"),
        ("setattr(A, f.__name__, f)", "A"),
    ],
)  # fmt: skip
def test_a_change_of_what_is_kept_that_is_left_out_is_said(statement, changed):
    first = "import torch\nlost = make()\nn, d, unused = 0, {}, {}\ndef f(self): return torch.f(d, n)\nclass A: pass"
    lines = f"unused['n'] = 3; A(3).x = f; print(A)\n{statement}"
    source = write_source(read_notebook(notebook(first, lines), "lab.ipynb")).decode()
    how = "but a notebook is read and not run: begin every cell that your code needs with # EXPORT"
    assert f"\n# not read, but used: code cell 2, line 2 ({changed}): " in source
    assert [out for out in CellNames(source).reasons if "cell 2" in out] == [
        f"code cell 2, line 2 defines {changed}, {how}"
    ]
    # A later definition replaces it.
    again = write_source(read_notebook(notebook(first, lines, first), "lab.ipynb")).decode()
    assert "but used: code cell 2" not in again


def test_marked_cells_are_taken_whole_and_alone():
    assert kept("import math\nx = f()", "y = 2", tagged=[1]) == ["import math\nx = f()"]
    assert kept("z = 1", "# EXPORT\ny = f()") == ["\ny = f()"]
    assert kept("z = 1", "%%time\n# EXPORT\nimport seaborn") == ["\n\nimport seaborn"]


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
    with pytest.raises(NotebookError, match="line 2: unmatched"):
        read_notebook(notebook(" " * 100_000 + "x\n)"), "lab.ipynb")
    with pytest.raises(NotebookError, match="line 2: unexpected indent"):
        read_notebook(notebook(" " * 100_000 + "x\n y"), "lab.ipynb")
    assert time.process_time() - started < 1


def test_the_source_names_the_cell_of_each_line():
    cells = read_notebook(
        notebook("import math", "from __future__ import annotations\nx = math.pi\ny = 2"), "lab.ipynb"
    )
    source = write_source(cells).decode()
    assert (
        source
        == "from __future__ import annotations\n# code cell 1\nimport math\n# code cell 2\n\nx = math.pi\ny = 2\n"
    )
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


BROKEN = "x = 1\nasync def softmax(scores:\n    pass\nclass Later: pass"


def test_the_source_says_what_is_left_out_and_an_error_that_follows_from_it_why():
    cells = read_notebook(
        notebook("import math, seaborn\nd, e = make('a')\nd.x = 1; f(); d = 2", BROKEN, "def f():\n    return e"),
        "lab.ipynb",
    )
    source = write_source(cells).decode()
    assert [line for line in split_lines(source) if line.startswith("# not")] == [
        "# not read: code cell 1, line 1 (math, seaborn): import math, seaborn",
        "# not read, but used: code cell 1, line 2 (e): d, e = make('a')",
        "# not read: code cell 1, line 3: d.x = 1",
        "# not valid Python: code cell 2, line 2 (x, softmax, Later): '(' was never closed",
    ]
    names = CellNames(source)
    how = "but a notebook is read and not run: begin every cell that your code needs with # EXPORT"
    fault = "its line 2 is not valid Python: '(' was never closed"
    for before, why, after in (
        ("NameError: name 'e' is not defined", f"code cell 1, line 2 defines e, {how}", ". Did"),
        ("name 'seaborn' is not defined", f"code cell 1, line 1 defines seaborn, {how}", ""),
        (
            "module 'submission' has no attribute 'softmax'",
            f"code cell 2, which defines softmax, is left out: {fault}", "",
        ),
        (
            "cannot import name 'Later' from 'submission'", f"code cell 2, which defines Later, is left out: {fault}",
            " (submission.py)",
        ),
    ):  # fmt: skip
        assert names.add(before + after, "submission.py") == f"{before} ({why}){after}"
        assert names.add(f"{before} ({why}){after}", "submission.py") == f"{before} ({why}){after}"
        assert json.loads(names.add(json.dumps(before + after), "submission.py")) == f"{before} ({why}){after}"
    assert explain_missing("name 'e' is not defined", cells, "lab") == names.add(
        "name 'e' is not defined", "submission.py"
    )
    for other in ("name 'd' is not defined", "module 'numpy' has no attribute 'e'", "name 'u' is not defined"):
        assert names.add(other, "submission.py") == other


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


def test_what_a_class_lacks_because_a_cell_is_not_run_is_noted(lab):
    norm = (PROGRAMS / "norm_class.py").read_text(encoding="utf-8")
    path = lab(norm, "for name in ('scale', 'forward'):\n    setattr(LayerNorm, name, getattr(Better, name))")
    hints = load_implementation(path, load_spec()).hints
    assert any("code cell 2, line 1 defines LayerNorm, but" in hint for hint in hints)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["import numpy as np\ndef f(:"], "{path}, code cell 1, line 2: invalid syntax: def f(:"),
        (
            ["R = {*()}.copy()", "def add(f):\n    R.add(f)\n@add\ndef g(): pass"],
            "{path} could not be imported: NameError: name 'R' is not defined (code cell 1, line 1 defines R, but a "
            "notebook is read and not run: begin every cell that your code needs with # EXPORT) ({path}, code cell 2:2",
        ),
        (["x = 1", "class A(Base):\n    pass"], "{path} could not be imported: NameError: name 'Base' is not defined"),
    ],
)
def test_a_notebook_that_cannot_be_loaded_names_the_cell(lab, cells, says):
    path = lab(*cells)
    with pytest.raises(AdapterError) as caught:
        find_adapter(str(path), load_spec())
    assert str(caught.value).startswith(says.format(path=path))
    assert f"code cell {len(cells)}" in str(caught.value)


def test_a_notebook_that_is_no_python_in_part_is_no_starter(lab):
    path = lab("x = 1", BROKEN)
    with pytest.raises(
        NotebookError, match=r"lab\.ipynb, code cell 2, line 2: '\(' was never closed: async def softmax"
    ):
        read_source(path)


def test_what_is_left_out_and_needed_is_a_note_of_the_report(lab):
    path = lab(
        "import numpy as np\nEPS = make(); unused = make()", SOFTMAX.replace("e = ", "e = EPS * "), BROKEN, "f(:"
    )
    report = goldformer.check(path, "softmax")
    assert not report
    notes = (
        "code cell 1, line 2 defines EPS, but a notebook is read and not run: begin every cell that your code needs "
        "with # EXPORT",
        "code cell 3 is left out: its line 2 is not valid Python: '(' was never closed",
        "code cell 4 is left out: its line 1 is not valid Python: invalid syntax",
    )
    judged_in = 'judged in float32; dtypes="all" for half types'
    assert report.record.hints == (*notes, judged_in)
    for text in (repr(report), str(report)):
        assert all(f"Note: {note}" in " ".join(text.split()) for note in notes)
    path = lab("import numpy as np\nEPS = 1.0\nloss = make()", SOFTMAX.replace("e = ", "e = EPS * "))
    report = goldformer.check(path, "softmax")
    assert report, report
    assert report.record.hints == (judged_in,)
    path = lab(SOFTMAX.replace("softmax", "f"), "softmax = jit(f)")
    with pytest.raises(AdapterError, match=r"could be checked\n  .*code cell 2, line 1 defines softmax, but"):
        goldformer.check(path, "softmax")


def test_a_notebook_without_functions_is_told_so(lab):
    with pytest.raises(AdapterError, match=r"lab\.ipynb: it defines no function and no class$"):
        goldformer.check(lab("x = 1"), "softmax")


@pytest.mark.parametrize(("text", "says"), [("x = '\0'", r"null bytes: x = '\x00'"), ("x = '\ud800'", r"x = '\ud800'")])
def test_a_character_that_python_refuses_is_found_in_its_line(text, says):
    raw = notebook("import math\ny = 1\n?").decode().replace("?", json.dumps(text)[1:-1]).encode()
    with pytest.raises(NotebookError, match=r"lab\.ipynb, code cell 1, line 3: ") as raised:
        read_notebook(raw, "lab.ipynb")
    assert str(raised.value).endswith(says)
