"""Fresh cases: an assignment's components on inputs that nobody has seen, drawn with its seed and proven.

A submission that answers the published cases from a table fails them all.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from goldformer.conformance.grading.assignment import published_cases
from goldformer.conformance.grading.model import Assignment
from goldformer.conformance.grading.redraw import Raw, redrawn
from goldformer.conformance.grading.templates import Chance, Template, Unfit, unfit
from goldformer.conformance.judging.tolerance import LARGEST, least_margin
from goldformer.spec import Case, Spec, SpecError
from goldformer.spec.casefile import derivation_digest, read_cases
from goldformer.spec.goldenfile import render
from goldformer.spec.lint import find_equal_sizes, lint_cases
from goldformer.spec.load import load_own_cases
from goldformer.spec.model import ANY
from goldformer.spec.yamlfile import YamlFile

#: So often a case is drawn until it shows what it should; then another one is drawn like.
_ATTEMPTS: Final = 100

#: So often a case is proven and then found to show too little, which takes longer than drawing.
_PROOFS: Final = 12

#: The fewest different words in what is decoded.
_WORDS: Final = 3


class _Dumper(yaml.SafeDumper):
    """Writes what stands at two places twice: names of anchors could not be joined."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


class _Blind(Unfit):
    """A case that was proven, and shows too little."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Fresh cases as a file of cases, and why components have fewer of them than are asked for."""

    text: str
    short: Mapping[str, str]


def fresh_cases(assignment: Assignment, spec: Spec, seed: str) -> str:
    """The text of a file of fresh cases with their golden values, which `load_own_cases` reads.

    The same for the same assignment and seed. Only error scales, which are measured, may differ in their last digit
    from machine to machine, as those of published cases may. ImportError without python-flint, which derives.
    """
    return draw_fresh(assignment, spec, seed).text


def draw_fresh(assignment: Assignment, spec: Spec, seed: str) -> Fresh:
    """Fresh cases of every component of an assignment, and which components have fewer than it asks for.

    ImportError without python-flint, which derives them.
    """
    published = published_cases(assignment, spec)
    parts: list[str] = []
    short: dict[str, str] = {}
    for part in assignment.parts if assignment.fresh else ():
        cases = [case for case in published if case.component == part.component]
        drawn = list(_Component(part.component, cases, assignment, spec, seed).drawn())
        if len(drawn) < assignment.fresh:
            short[part.component] = f"{len(drawn)} of {assignment.fresh}: no published case can be drawn anew"
        if drawn:
            parts.append(_listed(_as_file(part.component, drawn)))
    return Fresh("".join(parts) or "[]\n", short)


def load_fresh(text: str, spec: Spec) -> list[Case]:
    """The cases of a text of fresh ones, checked as `load_own_cases` checks a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.yaml"
        path.write_text(text, encoding="utf-8")
        return load_own_cases(path, spec)


@dataclass(frozen=True, slots=True)
class _Proven:
    """A fresh case: as it is written, its golden values, and as it is read."""

    text: str
    golden: Mapping[str, Any]
    case: Case


def _as_file(component: str, proven: Sequence[_Proven]) -> str:
    """Return a file of cases outside the spec, which holds their golden values itself."""
    golden = render({one.case.id: one.golden for one in proven})
    cases = "".join(one.text for one in proven)
    return f"component: {component}\ncases:\n{cases}golden:\n{textwrap.indent(golden, '  ')}\n"


def _listed(text: str) -> str:
    """Return a file as an item of a list of files."""
    return f"- {textwrap.indent(text, '  ').lstrip()}"


class _Component:
    """The fresh cases of one component."""

    def __init__(self, component: str, cases: Sequence[Case], assignment: Assignment, spec: Spec, seed: str) -> None:
        self.component, self.assignment, self.spec, self.seed = component, assignment, spec, seed
        self.contract = spec.contracts[component]
        self.seen = {_given(case) for case in spec.cases_of(component)}
        raw = {item["id"]: item for item in _published(spec, component)} if cases else {}
        templates = [Template(case, raw[case.id], self.contract) for case in cases if not case.error]
        fit = [template for template in templates if unfit(template, spec) is None]
        # Where every case is written out, its numbers change their places.
        self.templates = [template for template in fit if not template.written] or fit

    def drawn(self) -> Iterator[_Proven]:
        """Draw and prove cases, as many as are asked for if there are so many."""
        for number, templates in zip(range(1, self.assignment.fresh + 1), self._like(), strict=False):
            for template in templates:
                proven = self._attempt(template, f"fresh-{self.component.replace('_', '-')}-{number}")
                if proven is not None:
                    yield proven
                    break

    def _like(self) -> Iterator[list[Template]]:
        """What each fresh case may be drawn like, the best first: kinds of cases in turn, none twice in a row."""
        kinds: dict[Any, list[Template]] = {}
        chance = Chance(self.seed, self.component)
        for template in sorted(self.templates, key=lambda t: chance.number(t.case.id)):
            kinds.setdefault(template.kind, []).append(template)
        taken: Counter[Any] = Counter()
        for kind in _in_turn(sorted(kinds, key=repr)):
            same = kinds[kind]
            first = taken[kind] % len(same)
            taken[kind] += 1
            yield [*same[first:], *same[:first], *(t for other, like in kinds.items() if other != kind for t in like)]

    def _attempt(self, template: Template, id_: str) -> _Proven | None:
        """Return a case that shows what it should, or None."""
        proofs = 0
        for attempt in range(_ATTEMPTS):
            try:
                raw = redrawn(template, Chance(self.seed, id_, attempt))
                proven = self._proven(raw)
            except _Blind:
                proofs += 1
                if proofs == _PROOFS:
                    break
            except Unfit:
                continue
            else:
                self.seen.add(_given(proven.case))
                return proven
        return None

    def _proven(self, raw: Raw) -> _Proven:
        """Derive a case; Unfit where it repeats another one, or does not show what it should."""
        from goldformer.spec.oracle.balls import Unproven  # fails where python-flint is missing
        from goldformer.spec.oracle.derive import derive
        from goldformer.spec.oracle.write import golden_entry

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{self.component}.yaml"
            case = self._read(path, raw)
            if find_equal_sizes(case, self.contract):
                raw = {**raw, "equal_sizes": "sizes that are equal are so in the case that this one is like"}
                case = self._read(path, raw)
            if _given(case) in self.seen:
                raise Unfit("these inputs are published, or drawn already")
            self._refuse_monotony(case)
            try:
                derived = derive(case, self.contract, self.spec.conventions, advice=False)
            except Unproven as error:
                raise _Blind(str(error)) from error
            file = YamlFile.read(path)
            digest = derivation_digest(file.data["cases"][0], self.contract, self.spec.conventions)
            proven = _Proven(_as_item(raw), golden_entry(digest, derived, case.expect), case)
            path.write_text(_as_file(self.component, [proven]), encoding="utf-8")
            (case,) = read_cases(YamlFile.read(path), self.spec.contracts, self.spec.conventions, underived=False)
            self._refuse(case)
        return replace(proven, case=case)

    def _refuse_monotony(self, case: Case) -> None:
        """Refuse what decodes one word over and over, or one sentence for all, before it is proven that it does."""
        from goldformer.spec.oracle.derive import apply, choose_options

        if not {"ids", "scores"} <= set(self.contract.outputs):
            return
        option = self.spec.conventions[case.convention].default if case.convention else ANY
        given = (case.input_arrays, case.param_arrays, case.attributes)
        ids = apply(self.component, float, *given, choose_options(case, self.contract, option))["ids"]
        sentences = ids.reshape(-1, ids.shape[-1])
        if len(np.unique(sentences)) < _WORDS or len(np.unique(sentences, axis=0)) < 2:
            raise Unfit("too few words are decoded")

    def _read(self, path: Path, raw: Raw) -> Case:
        path.write_text(f"component: {self.component}\ncases:\n{_as_item(raw)}", encoding="utf-8")
        try:
            (case,) = read_cases(YamlFile.read(path), self.spec.contracts, self.spec.conventions, underived=True)
        except SpecError as error:
            raise Unfit(str(error)) from error
        return case

    def _refuse(self, case: Case) -> None:
        """Refuse what the lint does, and what some of the assignment's dtypes could not judge."""
        for problem in lint_cases(replace(self.spec, cases={case.id: case})):
            raise _Blind(problem.message)
        assert case.golden is not None, "it was derived"
        if case.golden.margin is not None and case.golden.margin <= max(map(least_margin, self.assignment.dtypes)):
            raise _Blind("rounding may turn a decision")
        if case.golden.peak > min(LARGEST[dtype] for dtype in self.assignment.dtypes):
            raise _Blind("numbers on the way overflow")


def _as_item(raw: Raw) -> str:
    """Return a case as an item of a list of cases."""
    return yaml.dump([raw], Dumper=_Dumper, sort_keys=False, width=108, allow_unicode=True, default_flow_style=None)


def _in_turn(kinds: Sequence[Any]) -> Iterator[Any]:
    """Kinds of cases without end: that with most inputs, that with fewest, a gradient, another one, and so on."""
    plain = sorted((kind for kind in kinds if not kind[0]), key=lambda kind: -len(kind[1]))
    plain = [*plain[:1], *plain[1:][-1:], *plain[1:-1]]
    gradients = [kind for kind in kinds if kind[0]]
    plainly, gradiently = cycle(plain or gradients), cycle(gradients or plain)
    for number in count() if kinds else ():
        yield next(gradiently if number % 4 == 2 else plainly)


def _published(spec: Spec, component: str) -> list[dict[str, Any]]:
    """The cases of a component as they are written."""
    cases: list[dict[str, Any]] = YamlFile.read(spec.root / "cases" / f"{component}.yaml").data["cases"]
    return cases


def _given(case: Case) -> tuple[Any, ...]:
    """What a call is told apart by: its inputs and attributes."""
    arrays = tuple((name, array.shape, array.tobytes()) for name, array in case.input_arrays.items())
    return case.cotangent is not None, arrays, tuple(case.attributes.items())
