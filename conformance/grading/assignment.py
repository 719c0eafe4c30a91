"""Read assignment.yaml, and check it against the spec and the files that it names.

SpecError lists every problem with its file, line and field.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter

from goldformer.adapters import DTYPES
from goldformer.adapters.notebook import SUFFIX, NotebookError, read_source
from goldformer.conformance.grading.model import (
    REASONS,
    Assignment,
    Deduction,
    Feedback,
    GradedComponent,
    Points,
    SubmissionLimits,
    Worth,
)
from goldformer.conformance.grading.redraw import find_kind
from goldformer.conformance.judging.applicability import plan
from goldformer.spec import Case, Spec, SpecError
from goldformer.spec.errors import Problem
from goldformer.spec.strict import Name, StrictModel, Text
from goldformer.spec.yamlfile import MOST_PROBLEMS, YamlFile
from goldformer.spec.yamlfile import Field as Where

#: The default dtypes, which are those of `goldformer check`, which students run themselves.
_DTYPES: Final = ["float64", "float32"]


class FreshModel(StrictModel):
    """The number of cases to draw for each component, and their seed; by default, grading draws a seed and keeps it."""

    cases: Annotated[int, Field(ge=0, le=32)] = 4
    seed: Text | None = None


def _tag_worth(value: Any) -> str:
    return "as:part" if isinstance(value, dict) else "as:points"


WorthOrPoints = Annotated[
    Annotated[Worth, Tag("as:part")] | Annotated[Points, Tag("as:points")],
    Discriminator(_tag_worth),
]


class QuestionModel(StrictModel):
    """A question: its components with their points.

    `visible` and `hidden` hold for its components that say nothing themselves.
    """

    title: Text
    components: Annotated[dict[Name, WorthOrPoints], Field(min_length=1)]
    visible: Points | None = None
    hidden: Points | None = None


class AssignmentFile(StrictModel):
    """The contents of assignment.yaml. File names are relative to its folder; a component may be only its points.

    There are either `components` or `questions`, which group them.

    `without` leaves out cases and properties, each by its id or by a pattern such as sdpa-dropout*. With `carry: once`,
    a mistake costs points only in the component that makes it; with `every`, in those built of it too. `forbid` names
    functions, classes and modules that submissions may not use, such as torch.softmax.
    """

    title: Text
    adapter: Text = "adapter.py"
    starter: Text | None = None
    components: dict[Name, WorthOrPoints] = Field(default_factory=dict)
    questions: list[QuestionModel] = Field(default_factory=list)
    dtypes: Annotated[list[Annotated[str, Field(json_schema_extra={"enum": list(DTYPES)})]], Field(min_length=1)] = (
        _DTYPES
    )
    fresh: FreshModel = FreshModel()
    limits: SubmissionLimits = SubmissionLimits()
    without: list[Text] = Field(default_factory=list)
    carry: Literal["once", "every"] = "once"
    forbid: list[Text] = Field(default_factory=list)
    deductions: list[Deduction] = Field(default_factory=list)
    feedback: Feedback = Feedback()

    def list_worths(self) -> dict[str, Worth | float]:
        """Return the points of all components, with and without questions."""
        return self.components | {name: worth for q in self.questions for name, worth in q.components.items()}


def read_assignment(path: Path, spec: Spec) -> Assignment:
    """Read an assignment and check it against the spec and the files that it names; SpecError lists every problem.

    Source: docs/assignment-reference.md.
    """
    file = YamlFile.read(path)
    model = file.parse(AssignmentFile)
    checks = (
        _check_questions(file, model),
        _check_files(file, model),
        _check_components(file, model, spec),
        _check_without(file, model, spec),
        _check_deductions(file, model, spec),
        _check_forbidden(file, model),
    )
    # Each problem costs a search for its line.
    if problems := list(islice(chain(*checks), MOST_PROBLEMS)):
        raise SpecError(problems)
    folder = path.resolve().parent
    return Assignment(
        path=path.resolve(),
        title=model.title,
        adapter=folder / model.adapter,
        starter=folder / model.starter if model.starter is not None else None,
        parts=tuple(_make_parts(model)),
        dtypes=tuple(model.dtypes),
        fresh=model.fresh.cases,
        seed=model.fresh.seed,
        limits=model.limits.model_copy(update={"cpu": model.limits.cpu or _sum_times(model)}),
        deductions=tuple(model.deductions),
        feedback=model.feedback,
        without=(
            *(case.id for case in plan(spec, model.list_worths()) if _is_left_out(case, model)),
            *(name for name in spec.properties if any(fnmatchcase(name, pattern) for pattern in model.without)),
        ),
        carry=model.carry,
        forbid=tuple(model.forbid),
    )


def list_published_cases(assignment: Assignment, spec: Spec) -> list[Case]:
    """Return the spec's cases of an assignment's components, except those that it leaves out."""
    return [c for c in plan(spec, (part.component for part in assignment.parts)) if c.id not in assignment.without]


def digest_assignment(assignment: Assignment) -> str:
    """Return a digest of an assignment and of the contents of its adapter and starter, but of no path."""
    fields = TypeAdapter(Assignment).dump_python(assignment, exclude={"path"})
    for name in ("adapter", "starter"):
        path: Path | None = fields[name]
        fields[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else None
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _sum_times(model: AssignmentFile) -> float:
    """Return the processor time of the start and of all components, which one process may make."""
    return model.limits.start + model.limits.total * max(1, len(model.list_worths()))


def _make_parts(model: AssignmentFile) -> Iterator[GradedComponent]:
    """Yield the components in order, with the question and its weights."""
    for name, worth in model.components.items():
        yield GradedComponent(component=name, **_list_fields(worth))
    for question in model.questions:
        for name, worth in question.components.items():
            fields = _list_fields(worth)
            if fields.get("visible") is None and fields.get("hidden") is None:
                fields |= {"visible": question.visible, "hidden": question.hidden}
            yield GradedComponent(component=name, question=question.title, **fields)


def _list_fields(worth: Worth | float) -> dict[str, Any]:
    return worth.model_dump() if isinstance(worth, Worth) else {"points": worth}


def _check_files(file: YamlFile, model: AssignmentFile) -> Iterator[Problem]:
    for field, name in (("adapter", model.adapter), ("starter", model.starter)):
        if name is None:
            continue
        place = Path(name)
        suffixes = (".py", SUFFIX) if field == "starter" else (".py",)
        if place.is_absolute() or ".." in place.parts or place.suffix not in suffixes:
            what = "a Python file or a notebook" if field == "starter" else "a Python file"
            message = f"{name!r} should be {what} next to this one or in a folder below it"
            yield file.problem((field,), message)
        elif not os.path.isfile(file.path.resolve().parent / place):
            yield file.problem((field,), f"there is no file {name} in the assignment's folder")
        elif place.suffix == SUFFIX:
            try:
                read_source(file.path.resolve().parent / place)
            except NotebookError as error:
                yield file.problem((field,), str(error))


def _check_questions(file: YamlFile, model: AssignmentFile) -> Iterator[Problem]:
    if bool(model.components) == bool(model.questions):
        yield file.problem(("components",), "give the components here, or below questions: one of the two")
    seen: set[str] = set()
    titles: set[str] = set()
    for index, question in enumerate(model.questions):
        where: Where = ("questions", index)
        if question.title in titles:
            yield file.problem((*where, "title"), f"{question.title} is the title of another question")
        for name in question.components.keys() & seen:
            yield file.problem((*where, "components", name), "is part of another question")
        yield from _check_weights(file, where, question)
        titles.add(question.title)
        seen |= question.components.keys()


def _check_weights(file: YamlFile, where: Where, model: QuestionModel | Worth) -> Iterator[Problem]:
    given = [weight for weight in (model.visible, model.hidden) if weight is not None]
    if len(given) == 1 or (given and not sum(given)):
        message = "visible and hidden are weights: give both, at least one of them more than 0"
        yield file.problem(where, message)


def _check_large_scores(
    file: YamlFile, where: Where, worth: Worth, model: AssignmentFile, spec: Spec
) -> Iterator[Problem]:
    """Yield what is wrong with the points of large scores: too many, or no case can earn or lose them."""
    name, field = str(where[-1]), (*where, "large_scores")
    if worth.large_scores is None or name not in spec.contracts:
        return
    if worth.large_scores > worth.points:
        yield file.problem(field, f"is {worth.large_scores:g}, more than the points of {name} ({worth.points:g})")
    if worth.rule == "all":
        yield file.problem(field, "has no effect with rule: all: leave out one of the two")
    cases = [case for case in plan(spec, [name]) if case.component == name and not _is_left_out(case, model)]
    if not any(find_kind(case) == "extreme" for case in cases):
        yield file.problem(field, f"{name} has no case of large scores that is asked for: leave this out")


def _check_components(file: YamlFile, model: AssignmentFile, spec: Spec) -> Iterator[Problem]:
    places: list[Where] = [("components", name) for name in model.components]
    places += [("questions", i, "components", name) for i, q in enumerate(model.questions) for name in q.components]
    worths = [*model.components.values(), *(worth for q in model.questions for worth in q.components.values())]
    for where, worth in zip(places, worths, strict=True):
        name = str(where[-1])
        if name not in spec.contracts:
            yield file.problem(where, _describe_unknown("component", name, spec.contracts))
        if isinstance(worth, Worth) and not worth.golden + worth.properties:
            yield file.problem(where, "golden and properties are weights: at least one must be more than 0")
        if isinstance(worth, Worth):
            yield from _check_weights(file, where, worth)
            yield from _check_large_scores(file, where, worth, model, spec)
    if worths and not any(_list_fields(worth)["points"] for worth in worths):
        yield file.problem(("components",), "no component has points, so there is nothing to earn")
    for index, dtype in enumerate(model.dtypes):
        if dtype not in DTYPES:
            yield file.problem(("dtypes", index), _describe_unknown("dtype", dtype, DTYPES))
        elif dtype in model.dtypes[:index]:
            yield file.problem(("dtypes", index), f"{dtype} is listed twice")
    for field in ("call", "start"):
        if (seconds := getattr(model.limits, field)) > model.limits.total:
            message = f"is {seconds:g} s, more than a component may take (total, {model.limits.total:g} s)"
            yield file.problem(("limits", field), message)
    if model.limits.cpu is not None and model.limits.cpu < (least := _sum_times(model)):
        message = f"is {model.limits.cpu:g} s: start and total for each component make {least:g} s; leave it out"
        yield file.problem(("limits", "cpu"), message)


def _is_left_out(case: Case, model: AssignmentFile) -> bool:
    """Return True if a case is left out, or the base case that it needs to be judged."""
    return any(fnmatchcase(id_, pattern) for id_ in filter(None, (case.id, case.base)) for pattern in model.without)


def _check_without(file: YamlFile, model: AssignmentFile, spec: Spec) -> Iterator[Problem]:
    if not spec.contracts.keys() >= model.list_worths().keys():
        return  # another check reports the unknown component
    cases = plan(spec, model.list_worths())
    known = [*(case.id for case in cases), *spec.properties]
    for index, pattern in enumerate(model.without):
        if not any(fnmatchcase(id_, pattern) for id_ in known):
            yield file.problem(("without", index), _describe_unknown("case", pattern, known))
    for name in model.list_worths():
        golden = [case for case in cases if case.component == name and case.golden is not None]
        if golden and all(_is_left_out(case, model) for case in golden):
            yield file.problem(("without",), f"leaves out every case of {name}: leave out the component")


def _check_deductions(file: YamlFile, model: AssignmentFile, spec: Spec) -> Iterator[Problem]:
    covered = {name for name in model.list_worths() if name in spec.contracts}
    covered |= {part for name in covered for part in spec.list_dependencies(name)}
    seen: set[str] = set()
    for index, deduction in enumerate(model.deductions):
        where: Where = ("deductions", index)
        if (deduction.mistake is None) == (deduction.reason is None):
            yield file.problem(where, "should be for a mistake or for a reason, but not for both")
            continue
        field, named = ("mistake", deduction.mistake) if deduction.mistake else ("reason", deduction.reason)
        assert named is not None, "one of the two is given"
        if field == "reason" and named not in REASONS:
            yield file.problem((*where, field), _describe_unknown("reason", named, REASONS))
        elif field == "mistake" and named not in spec.mistakes:
            yield file.problem((*where, field), _describe_unknown("mistake", named, spec.mistakes))
        elif field == "mistake" and (made_in := spec.mistakes[named].component) not in covered:
            message = f"{named} is a mistake of {made_in}, which is neither asked for nor a part of what is"
            yield file.problem((*where, field), message)
        elif named in seen:
            yield file.problem((*where, field), f"{named} has a deduction already")
        seen.add(named)


def _check_forbidden(file: YamlFile, model: AssignmentFile) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, name in enumerate(model.forbid):
        if not all(part.isidentifier() for part in name.split(".")):
            message = f"{name!r} should be a dotted name, such as torch.nn.functional.softmax"
            yield file.problem(("forbid", index), message)
        elif name in seen:
            yield file.problem(("forbid", index), f"{name} is listed twice")
        seen.add(name)


def _describe_unknown(kind: str, word: str, known: Collection[str]) -> str:
    from goldformer.conformance.did_you_mean import describe_unknown  # only needed for an error

    message = describe_unknown((word,), tuple(known), f"unknown {kind}")
    assert message is not None, "it is not among them"
    return message
