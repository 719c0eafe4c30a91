"""Forbidden names are found by reading, and shown to whom they concern."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from dataclasses import replace

import pytest

from goldformer.conformance.grading.assignment import read_assignment
from goldformer.conformance.grading.forbidden import find_forbidden_uses
from goldformer.conformance.grading.grader import Grader
from goldformer.conformance.grading.model import ForbiddenUse
from goldformer.conformance.grading.results import feedback, staff
from goldformer.spec import SpecError
from homework import CORRECT, YAML, OpenSandbox, make_task, submitted, write_assignment, write_ready

FORBID = (
    "torch.softmax", "torch.Tensor.softmax", "torch.nn.functional.softmax", "torch.nn.MultiheadAttention",
    "torch.nn.functional.scaled_dot_product_attention", "colorsys",
)  # fmt: skip
#: Sources with the name that each of them uses in its last line.
USES = {
    "import torch\ntorch.softmax(x, -1)": "torch.softmax",
    "import torch as t\nt.softmax(x, -1)": "torch.softmax",
    "from torch import softmax as mine": "torch.softmax",
    "import torch.nn.functional as F\nF.softmax(x, -1)": "torch.nn.functional.softmax",
    "from torch.nn import functional\nfunctional.softmax(x, -1)": "torch.nn.functional.softmax",
    "from torch import nn\nnn.functional.softmax(x, -1)": "torch.nn.functional.softmax",
    "import torch\nF = torch.nn.functional\nF.softmax(x, -1)": "torch.nn.functional.softmax",
    "from torch.nn.functional import *\nsoftmax(x, -1)": "torch.nn.functional.softmax",
    "import torch\ngetattr(torch, 'softmax')(x, -1)": "torch.softmax",
    "def f(x):\n    return (x @ x).softmax(-1)": "torch.Tensor.softmax",
    "from torch import nn\nclass Mine(nn.MultiheadAttention): pass": "torch.nn.MultiheadAttention",
    "import colorsys": "colorsys",
    "from colorsys import rgb_to_hsv": "colorsys",
}


@pytest.mark.parametrize("source", USES)
def test_a_use_is_found_with_its_line(source):
    uses = find_forbidden_uses({"submission.py": source.encode()}, FORBID)
    assert ForbiddenUse("submission.py", source.count("\n") + 1, USES[source]) in uses
    assert {use.name for use in uses} == {USES[source]}


#: Sources with the private names that each of them uses in its last line.
PRIVATE = {
    "import torch\ntorch._log_softmax(x, -1, False).exp()": ["torch._log_softmax"],
    "import torch\ntorch._C._VariableFunctions.softmax(x, -1)": ["torch._C._VariableFunctions.softmax"],
    "from torch import _VF\n_VF.softmax(x, -1)": ["torch._VF.softmax"],
    "import torch._C": ["torch._C"],
    "import torch\ntorch.ops.aten._softmax.default(x, -1, False)": ["torch.ops.aten._softmax.default"],
    "from torch import ops": ["torch.ops"],
    "import torch\ngetattr(torch._C, 'x')": ["torch._C.x", "torch._C"],
    f"import torch\ntorch._{'x' * 200}": [f"torch._{'x' * 73}"],
}


@pytest.mark.parametrize("source", PRIVATE)
def test_a_private_name_of_a_library_with_forbidden_ones_is_found(source):
    uses = find_forbidden_uses({"submission.py": source.encode()}, FORBID)
    line = source.count("\n") + 1
    assert [use for use in uses if use.line == line] == [
        ForbiddenUse("submission.py", line, name, private=True) for name in PRIVATE[source]
    ]
    assert find_forbidden_uses({"submission.py": source.encode()}, ("numpy.exp",)) == ()


def test_a_name_that_is_forbidden_itself_is_not_listed_as_private():
    uses = find_forbidden_uses({"submission.py": b"import torch\ntorch._softmax(x)"}, ("torch._softmax",))
    assert uses == (ForbiddenUse("submission.py", 2, "torch._softmax"),)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__\ntorch.optim",
        "self._softmax(x)\nimport numpy\nnumpy._core",
        "def softmax(x): return x\nsoftmax(1)",
        "import torch\ntorch.exp(x)",
        "from torch import nn\nclass MultiheadAttention(nn.Module): pass\nMultiheadAttention()",
        "from .softmax import softmax\nsoftmax(x)",
        "'torch.softmax'  # torch.softmax",
        "import (",
        "x = " + "(" * 5000,
    ],
)
def test_what_is_no_use_is_not_reported(source):
    assert find_forbidden_uses({"submission.py": source.encode()}, FORBID) == ()


#: Sources that once kept the reader busy for minutes or hours, or in gigabytes of memory.
ENDLESS = {
    "lines": "import torch\n" + "torch.softmax\n" * 15_000,
    "chains": ("torch" + ".y" * 900 + "\n") * 130,
    "stars": "".join(f"from a{i} import *\n" for i in range(6000)) + "x\n" * 40_000,
    "long names": f"import torch\na = torch.{'x' * 100_000}\n" + "".join(f"a{i} = a.y\n" for i in range(9000)),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_no_source_keeps_the_reader_busy(kind):
    code = f"""
import resource, sys
from goldformer.conformance.grading.forbidden import find_forbidden_uses as find
resource.setrlimit(resource.RLIMIT_CPU, (8, 8))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(find({{"submission.py": sys.stdin.buffer.read()}}, {FORBID!r})))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=ENDLESS[kind].encode(), capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    count, mebibytes = map(int, done.stdout.split())
    assert count == (50 if kind == "lines" else 0)
    assert mebibytes < 400


def test_more_source_than_a_student_writes_is_not_read():
    assert find_forbidden_uses({"submission.py": b"#" * (1 << 18) + b"\nimport colorsys\n"}, FORBID) == ()


@pytest.mark.parametrize("name", ["a.txt", "a.py"])
def test_a_large_file_beside_it_does_not_hide_submission(name):
    files = {name: b"#" * (1 << 19), "submission.py": b"import torch\ntorch.softmax(x, -1)\n"}
    assert find_forbidden_uses(files, FORBID) == (ForbiddenUse("submission.py", 2, "torch.softmax"),)


# ── what is shown ──


def test_the_pages_name_what_reading_finds(tmp_path, spec):
    task = make_task(tmp_path, spec, YAML + "forbid: [numpy.exp]\n")
    grader = Grader(task, spec).use_sandbox(OpenSandbox(spec))
    graded = grader.grade(submitted(CORRECT))
    assert graded.grade.forbidden == (ForbiddenUse("submission.py", 3, "numpy.exp"),)
    assert graded.grade.earned == graded.grade.points
    for page in (feedback.html, feedback.markdown):
        text = page(graded.grade, task.assignment, spec).replace("\\", "")
        assert (
            "numpy.exp (submission.py, line 3). Write it yourself. It was found by reading, which is no proof" in text
        )
    assert "numpy.exp, which the assignment forbids, in submission.py, line 3" in staff.html(
        graded.grade, task.assignment, spec
    )
    hidden = grader.grade(submitted("import numpy\nnumpy._core\n" + CORRECT)).grade
    private = "numpy._core, a private name that may be what the assignment forbids, in submission.py, line 2"
    assert private in staff.html(hidden, task.assignment, spec)
    assert "numpy._core" not in feedback.html(hidden, task.assignment, spec)
    allowed = replace(task, assignment=replace(task.assignment, forbid=()))
    grade = Grader(allowed, spec).use_sandbox(OpenSandbox(spec)).grade(submitted(CORRECT)).grade
    assert grade.forbidden == ()
    assert "forbids" not in feedback.html(grade, task.assignment, spec)


def test_a_name_is_checked_in_the_assignment(tmp_path, spec):
    path = write_assignment(tmp_path, YAML + "forbid: [numpy.exp, torch softmax, numpy.exp]\n")
    with pytest.raises(SpecError) as caught:
        read_assignment(path, spec)
    assert "forbid[1]: 'torch softmax' should be a dotted name, such as torch.nn.functional.softmax" in str(
        caught.value
    )
    assert "forbid[2]: numpy.exp is listed twice" in str(caught.value)


def test_the_ready_attention_forbids_softmax_by_every_name_of_pytorch(spec, tmp_path):
    pytest.importorskip("torch")
    owners = ("torch", "torch.Tensor", "torch.special", "torch.nn.functional")
    names = [f"{owner}.{name}" for owner in owners for name in ("softmax", "log_softmax")]
    assert all(pkgutil.resolve_name(name) for name in names)
    write_ready("attention", tmp_path)
    assert {*names} <= {*read_assignment(tmp_path / "assignment.yaml", spec).forbid}
