"""Reads assignment.yaml: what is asked of students and how it is graded, held against the spec and the files it names.

SpecError lists every problem with its file, line and field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Discriminator, Field, Tag

from goldformer.adapters import DTYPES
from goldformer.conformance.grading.model import Assignment, Deduction, Feedback, Limits, Part
from goldformer.conformance.judging.cases import plan
from goldformer.conformance.judging.verdict import Reason
from goldformer.spec import Case, Spec, SpecError
from goldformer.spec.errors import Problem
from goldformer.spec.strict import Id, Name, StrictModel, Text
from goldformer.spec.yamlfile import Field as Where
from goldformer.spec.yamlfile import YamlFile

#: The reasons for which a check passes or is left out, which cost nothing; what is missing has no points to lose, and
#: nothing of a submission has moved since a baseline.
_NO_FAULT: Final = frozenset(
    {"", "not-implemented", "convention", "dtype", "device", "advice", "not-checkable", "moved", "fault"}
)

#: The reasons that may cost points.
REASONS: Final[tuple[str, ...]] = tuple(reason for reason in get_args(Reason) if reason not in _NO_FAULT)

#: What is checked where an assignment names no dtypes: as `goldformer check` does, which students run themselves.
_DTYPES: Final = ["float64", "float32"]

Points = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

_LIMITS: Final = Limits()
_FEEDBACK: Final = Feedback()


class PartModel(StrictModel):
    """What a component is worth; `golden` and `properties` are weights.

    Rule `share` gives the share of checks that pass, `all` nothing unless all do.
    """

    points: Points
    golden: Points = 1.0
    properties: Points = 0.0
    rule: Literal["share", "all"] = "share"


class FreshModel(StrictModel):
    """How many cases to draw for each component, and from what; without a seed, grading draws one and keeps it."""

    cases: Annotated[int, Field(ge=0, le=32)] = 4
    seed: Text | None = None


class LimitsModel(StrictModel):
    """What a submission may use: times in seconds, sizes in MiB."""

    call: Seconds = _LIMITS.call
    start: Seconds = _LIMITS.start
    total: Seconds = _LIMITS.total
    cpu: Seconds = _LIMITS.cpu
    memory: Count = _LIMITS.memory
    processes: Count = _LIMITS.processes
    output: Count = _LIMITS.output
    file: Count = _LIMITS.file
    size: Count = _LIMITS.size
    files: Count = _LIMITS.files


class DeductionModel(StrictModel):
    """What a named mistake, or a reason for which checks fail, costs once; `note` is told to the student."""

    points: Points
    mistake: Id | None = None
    reason: Annotated[str | None, Field(json_schema_extra={"enum": list(REASONS)})] = None
    note: str = ""


class FeedbackModel(StrictModel):
    """What a student is shown."""

    diagnosis: bool = _FEEDBACK.diagnosis
    first_wrong: bool = _FEEDBACK.first_wrong
    expected: bool = _FEEDBACK.expected
    reproduction: bool = _FEEDBACK.reproduction
    stderr: bool = _FEEDBACK.stderr


def _worth(value: Any) -> str:
    return "as:part" if isinstance(value, dict) else "as:points"


Worth = Annotated[
    Annotated[PartModel, Tag("as:part")] | Annotated[Points, Tag("as:points")],
    Discriminator(_worth),
]


class AssignmentFile(StrictModel):
    """assignment.yaml. Files are named from its folder; a component may be given its points alone.

    `without` are cases and properties that are left out, each by its id or by a pattern such as sdpa-dropout*.
    """

    title: Text
    adapter: Text = "adapter.py"
    starter: Text | None = None
    components: Annotated[dict[Name, Worth], Field(min_length=1)]
    dtypes: Annotated[list[Annotated[str, Field(json_schema_extra={"enum": list(DTYPES)})]], Field(min_length=1)] = (
        _DTYPES
    )
    fresh: FreshModel = FreshModel()
    limits: LimitsModel = LimitsModel()
    without: list[Text] = Field(default_factory=list)
    deductions: list[DeductionModel] = Field(default_factory=list)
    feedback: FeedbackModel = FeedbackModel()


def read_assignment(path: Path, spec: Spec) -> Assignment:
    """An assignment, held against the spec and the files it names; SpecError lists every problem.

    Source: docs/assignments.md.
    """
    file = YamlFile.read(path)
    model = file.parse(AssignmentFile)
    checks = (
        _files(file, model),
        _parts(file, model, spec),
        _without(file, model, spec),
        _deductions(file, model, spec),
    )
    if problems := [problem for check in checks for problem in check]:
        raise SpecError(problems)
    folder = path.resolve().parent
    return Assignment(
        path=path.resolve(),
        title=model.title,
        adapter=folder / model.adapter,
        starter=folder / model.starter if model.starter is not None else None,
        parts=tuple(_part(name, worth) for name, worth in model.components.items()),
        dtypes=tuple(model.dtypes),
        fresh=model.fresh.cases,
        seed=model.fresh.seed,
        limits=Limits(**model.limits.model_dump()),
        deductions=tuple(Deduction(**deduction.model_dump()) for deduction in model.deductions),
        feedback=Feedback(**model.feedback.model_dump()),
        without=(
            *(case.id for case in plan(spec, model.components) if _is_left_out(case, model)),
            *(name for name in spec.properties if any(fnmatchcase(name, pattern) for pattern in model.without)),
        ),
    )


def published_cases(assignment: Assignment, spec: Spec) -> list[Case]:
    """The spec's cases that an assignment asks for: those of its components but what it leaves out."""
    left_out = set(assignment.without)
    return [case for case in plan(spec, (part.component for part in assignment.parts)) if case.id not in left_out]


def digest_of(assignment: Assignment) -> str:
    """A digest of all that an assignment says, and of its adapter and its starter, wherever they lie."""
    said = asdict(assignment)
    del said["path"]
    for name in ("adapter", "starter"):
        place: Path | None = said[name]
        said[name] = hashlib.sha256(place.read_bytes()).hexdigest() if place is not None else None
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _part(component: str, worth: PartModel | float) -> Part:
    return Part(component, **worth.model_dump()) if isinstance(worth, PartModel) else Part(component, worth)


def _files(file: YamlFile, model: AssignmentFile) -> Iterator[Problem]:
    for field, name in (("adapter", model.adapter), ("starter", model.starter)):
        if name is None:
            continue
        place = Path(name)
        if place.is_absolute() or ".." in place.parts or place.suffix != ".py":
            message = f"{name!r} should be a Python file beside this one or in a folder below it"
            yield file.problem((field,), message)
        elif not (file.path.resolve().parent / place).is_file():
            yield file.problem((field,), f"there is no file {name} in the assignment's folder")


def _parts(file: YamlFile, model: AssignmentFile, spec: Spec) -> Iterator[Problem]:
    for name, worth in model.components.items():
        where: Where = ("components", name)
        if name not in spec.contracts:
            yield file.problem(where, _unknown("component", name, spec.contracts))
        if isinstance(worth, PartModel) and not worth.golden + worth.properties:
            yield file.problem(where, "golden and properties are weights of which one is more than 0")
    if not any(_part(name, worth).points for name, worth in model.components.items()):
        yield file.problem(("components",), "no component has points, so there is nothing to earn")
    for index, dtype in enumerate(model.dtypes):
        if dtype not in DTYPES:
            yield file.problem(("dtypes", index), _unknown("dtype", dtype, DTYPES))
        elif dtype in model.dtypes[:index]:
            yield file.problem(("dtypes", index), f"{dtype} is listed twice")
    for field in ("call", "start"):
        if (given := getattr(model.limits, field)) > model.limits.total:
            message = f"is {given:g} s, more than all of a submission may take (total, {model.limits.total:g} s)"
            yield file.problem(("limits", field), message)


def _is_left_out(case: Case, model: AssignmentFile) -> bool:
    """Whether a case is left out, or the one that it differs from in one fault, without which it cannot be judged."""
    return any(fnmatchcase(id_, pattern) for id_ in filter(None, (case.id, case.base)) for pattern in model.without)


def _without(file: YamlFile, model: AssignmentFile, spec: Spec) -> Iterator[Problem]:
    if not spec.contracts.keys() >= model.components.keys():
        return  # which cases there are to leave out is not known
    asked = plan(spec, model.components)
    known = [*(case.id for case in asked), *spec.properties]
    for index, pattern in enumerate(model.without):
        if not any(fnmatchcase(id_, pattern) for id_ in known):
            yield file.problem(("without", index), _unknown("case", pattern, known))
    for name in model.components:
        golden = [case for case in asked if case.component == name and case.golden is not None]
        if golden and all(_is_left_out(case, model) for case in golden):
            yield file.problem(("without",), f"leaves out every case of {name}: leave out the component")


def _deductions(file: YamlFile, model: AssignmentFile, spec: Spec) -> Iterator[Problem]:
    asked = {name for name in model.components if name in spec.contracts}
    asked |= {part for name in asked for part in spec.list_dependencies(name)}
    seen: set[str] = set()
    for index, deduction in enumerate(model.deductions):
        where: Where = ("deductions", index)
        if (deduction.mistake is None) == (deduction.reason is None):
            yield file.problem(where, "should be for a mistake or for a reason, and for one of them alone")
            continue
        field, named = ("mistake", deduction.mistake) if deduction.mistake else ("reason", deduction.reason)
        assert named is not None, "one of the two is given"
        if field == "reason" and named not in REASONS:
            yield file.problem((*where, field), _unknown("reason", named, REASONS))
        elif field == "mistake" and named not in spec.mistakes:
            yield file.problem((*where, field), _unknown("mistake", named, spec.mistakes))
        elif field == "mistake" and (made_in := spec.mistakes[named].component) not in asked:
            message = f"{named} is a mistake of {made_in}, which is neither asked for nor a part of what is"
            yield file.problem((*where, field), message)
        elif named in seen:
            yield file.problem((*where, field), f"{named} has a deduction already")
        seen.add(named)


def _unknown(kind: str, word: str, known: Collection[str]) -> str:
    from goldformer.conformance.reports.did_you_mean import unknown  # only on the way to an error

    said = unknown((word,), tuple(known), f"unknown {kind}")
    assert said is not None, "it is not among them"
    return said
