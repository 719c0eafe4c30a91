"""Judge a submission again by what it answered, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from goldformer.conformance.commands._console import FAILS, OK, CannotRun, say
from goldformer.conformance.commands._grade_solution import read_answers
from goldformer.conformance.grading.assignment import read_assignment
from goldformer.conformance.grading.grader import Grader
from goldformer.conformance.grading.store import ASSIGNMENT, GRADE, TRANSCRIPT, BadRecord, to_json, unpack_grade
from goldformer.conformance.grading.task import FRESH, GradingTask
from goldformer.conformance.grading.transcript import BadTranscript, ReplayMismatch, Transcript
from goldformer.conformance.selection import Numerics
from goldformer.spec import load_spec
from goldformer.spec.files import read_regular_file, resolve_path
from goldformer.spec.yamlfile import LARGEST

#: The most bytes of a packed transcript or grade.
_LARGEST: Final = 256 << 20


def replay_grade(folder: Path) -> int:
    """Judge again what a submission answered; return FAILS if its grade is another one."""
    top = resolve_path(folder).parent.parent
    try:
        before = unpack_grade(read_regular_file(folder / GRADE, _LARGEST))
        transcript = Transcript.unpack(read_regular_file(folder / TRANSCRIPT, _LARGEST))
        fresh = read_regular_file(top / FRESH, LARGEST).decode()
    except OSError as error:
        raise CannotRun(f"--replay {folder}: {error.filename} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CannotRun(f"--replay {folder}: {top / FRESH} is no text: {error}") from error
    except (BadRecord, BadTranscript) as error:
        raise CannotRun(f"--replay {folder}: {error}") from error
    spec = load_spec()
    task = GradingTask.of(read_assignment(top / ASSIGNMENT / "assignment.yaml", spec), fresh, spec)
    task = task.require_answers(read_answers(top))
    # As the processes that grade do: several threads round sums in another order.
    Numerics().apply("numpy")
    try:
        now = Grader(task, spec).replay(transcript)
    except (ReplayMismatch, BadTranscript) as error:
        raise CannotRun(f"--replay {folder}: {error}") from error
    if to_json(now) == to_json(before):
        say(f"{before.submission}: the same grade, {now.earned:g} of {now.points:g}")
        return OK
    say(f"{before.submission}: now {now.earned:g} of {now.points:g} ({now.outcome}), before {before.earned:g} of "
        f"{before.points:g} ({before.outcome})")  # fmt: skip
    for old, new in zip(before.checks, now.checks, strict=False):
        if old != new:
            say(f"- {new.verdict.check} ({new.verdict.dtype}): {new.outcome}, was {old.outcome}")
    return FAILS
