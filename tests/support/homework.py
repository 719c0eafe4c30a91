"""A small assignment and what students hand in for it, and a sandbox that isolates nothing, for tests of grading."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from goldformer.adapters import Adapter
from goldformer.adapters.process.child import ChildFault
from goldformer.adapters.process.server import Server
from goldformer.conformance.commands.assignment import read_ready
from goldformer.conformance.grading.assignment import read_assignment
from goldformer.conformance.grading.fresh import draw_fresh
from goldformer.conformance.grading.grader import GradedSubmission, Grader
from goldformer.conformance.grading.model import Grade, Outcome, Submission
from goldformer.conformance.grading.sandbox import Isolation, Limits, SandboxClient
from goldformer.conformance.grading.task import GradingTask
from goldformer.conformance.grading.worker import give_up, write_results
from goldformer.spec import Spec
from repository import load_module

ADAPTER = '''"""What was asked for, by the names of the contracts."""

import submission

ARRAYS = "numpy"


def softmax(scores):
    return getattr_or_missing("softmax")(scores)


def layer_norm(x, params, eps=1e-5):
    return getattr_or_missing("layer_norm")(x, params["gamma"], params["beta"], eps)


def getattr_or_missing(name):
    if not hasattr(submission, name):
        raise NotImplementedError(f"there is no {name}")
    return getattr(submission, name)
'''

YAML = """title: Two functions
components:
  softmax: {points: 10, properties: 0.25}
  layer_norm: 10
dtypes: [float64]
fresh: {cases: 2, seed: a}
# Real sizes take longer than all else; the ready assignments have them.
without: ["*-size-*"]
deductions:
- {mistake: softmax-unstable, points: 1, note: Take the maximum off first.}
"""

SOFTMAX = """import numpy as np
def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
"""
NORM = """def layer_norm(x, gamma, beta, eps):
    mean = x.mean(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps) + beta
"""
CORRECT = SOFTMAX + NORM
UNSTABLE = SOFTMAX.replace(" - scores.max(axis=-1, keepdims=True)", "") + NORM
#: What the eleventh of a class forgets.
WITHOUT_EPS = SOFTMAX + NORM.replace(" + eps)", ")")
UNKNOWN = SOFTMAX.replace("np.exp(", "np.exp(0.731 * ") + NORM


def write_assignment(folder: Path, text: str = YAML, adapter: str = ADAPTER) -> Path:
    """assignment.yaml and what it names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter.py").write_text(adapter, encoding="utf-8")
    (folder / "assignment.yaml").write_text(text, encoding="utf-8")
    return folder / "assignment.yaml"


def write_ready(kind: str, folder: Path) -> None:
    """Write the files of a ready assignment."""
    for name, data in read_ready(kind).items():
        (folder / name).write_bytes(data)


def write_class(folder: Path, **submissions: str) -> Path:
    """A folder of files, by the names of the students."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in submissions.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return folder


def make_task(folder: Path, spec: Spec, text: str = YAML, adapter: str = ADAPTER) -> GradingTask:
    """The exam of an assignment, its fresh cases drawn."""
    assignment = read_assignment(write_assignment(folder, text, adapter), spec)
    return GradingTask.of(assignment, draw_fresh(assignment, spec, str(assignment.seed)).text, spec)


def submitted(source: str, id_: str = "alice") -> Submission:
    """A submission of one file."""
    return Submission(id_, {"submission.py": source.encode()}, str(hash(source)))


#: What became of submissions, by all that decides about it: many tests hand in the same class.
_GRADED: dict[tuple[str, str], GradedSubmission] = {}


def grade_once(grader: Grader, task: GradingTask, submission: Submission) -> GradedSubmission:
    """Grade a submission, or return what became of it before; a fault of the grader is not kept."""
    key = (task.key(submission), submission.id)
    if key not in _GRADED:
        graded = grader.grade(submission)
        if graded.problem:
            return graded
        _GRADED[key] = graded
    return _GRADED[key]


def make_result(id_: str, outcome: Outcome, *, disturbed: bool) -> GradedSubmission:
    """A result of a submission that was not run."""
    grade = Grade(id_, "", outcome, "", 1.0, 0.0, (), (), (), OpenSandbox.isolation)
    return GradedSubmission(grade, disturbed=disturbed)


def grade_in_this_process(
    task: GradingTask, submissions: Iterable[Submission], spec: Spec, running: Path, broken: Collection[str] = ()
) -> Iterator[GradedSubmission]:
    """Yield what `grade_in_pool` does, without its processes; over `broken` submissions grading breaks down."""
    grader = Grader(task, spec).use_sandbox(OpenSandbox(spec), running)
    for submission in submissions:
        if submission.id in broken:
            yield give_up(submission, "it broke", task, spec)
        else:
            yield write_results(grade_once(grader, task, submission), submission, task, spec)


class OpenSandbox:
    """Runs submissions in this very process, for what does not depend on where they run."""

    isolation = Isolation("process", ("none",))

    def __init__(self, spec: Spec, limits: Limits | None = None) -> None:
        self._spec = spec
        self._limits = limits or Limits()
        self.memory = self._limits.memory
        self.starts = 0
        #: The seconds that a process says it has used.
        self.cpu = 0.0
        #: Is called before each answer.
        self.before: Callable[[Path, bytes], None] = lambda folder, message: None

    def client(self, folder: Path) -> SandboxClient:
        """The client of a folder."""
        return SandboxClient(lambda: self._spawn(folder), self._limits)

    def _spawn(self, folder: Path) -> _Inside:
        self.starts += 1
        return _Inside(self, folder, self._spec)


class _Inside:
    """A Peer that answers at once."""

    def __init__(self, sandbox: OpenSandbox, folder: Path, spec: Spec) -> None:
        self.owner = os.getpid()
        self._sandbox, self._folder, self._spec = sandbox, folder, spec
        self._server: Server | None = None

    def exchange(self, message: bytes, seconds: float) -> bytes:
        del seconds
        self._sandbox.before(self._folder, message)
        try:
            if self._server is None:
                self._server = Server(_adapter(self._folder, self._spec), self._spec)
            return self._server.answer(message).rstrip(b"\n")
        except (SyntaxError, ImportError, SystemExit) as error:
            raise ChildFault("crashed", f"ended: {error}") from error

    def measure_cpu(self) -> float:
        return self._sandbox.cpu

    def stop(self) -> None:
        pass

    def end(self, grace: float = 0.0) -> None:
        del grace

    def stderr_tail(self) -> str:
        return ""


def _adapter(folder: Path, spec: Spec) -> Adapter:
    sys.path.insert(0, str(folder / "submission"))
    try:
        sys.modules.pop("submission", None)
        module = load_module("adapter", folder / "adapter.py")
    finally:
        sys.path.remove(str(folder / "submission"))
        sys.modules.pop("submission", None)
    return Adapter.from_object(module, "adapter.py", spec)
