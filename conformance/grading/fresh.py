"""Draw fresh cases: an assignment's components on inputs that nobody has seen, with proven golden values.

A submission that answers the published cases from a table fails them all.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import yaml

from goldformer.conformance.grading.assignment import list_published_cases
from goldformer.conformance.grading.model import Assignment
from goldformer.conformance.grading.redraw import (
    Raw,
    SeededRandom,
    Template,
    Unfit,
    choose_options,
    explain_unfit,
    find_kind,
    raise_scores,
    redraw_case,
)
from goldformer.conformance.grading.refusals import redraw_refusal
from goldformer.conformance.judging.tolerance import LARGEST, least_margin
from goldformer.spec import Case, Spec, SpecError
from goldformer.spec.casefile import derivation_digest, read_cases
from goldformer.spec.files import replace_file
from goldformer.spec.goldenfile import render
from goldformer.spec.load import load_own_cases
from goldformer.spec.making.lint import find_equal_sizes, lint_cases
from goldformer.spec.yamlfile import Dumper, YamlFile

#: The number of draws from one template until a case reveals what it should.
_ATTEMPTS: Final = 100

#: The number of those draws that may be evaluated or proven, which takes longer than drawing.
_PROOFS: Final = 12

#: The fewest different words in what is decoded.
_WORDS: Final = 3

#: The most refusals that are drawn for a component, all from one base.
_REFUSALS: Final = 3


class _Dumper(Dumper):
    """Writes an object that stands in two places twice, because anchors of several files could collide."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


#: What a kind of published cases asks for, in words.
KINDS: Final[Mapping[str, str]] = {
    "refusal": "calls to be refused",
    "extreme": "scores that overflow the exponential",
    "gradient": "gradients",
    "value": "values",
}


class _Inconclusive(Unfit):
    """A case was evaluated, or even proven, and reveals too little."""


def list_unmatched_kinds(published: Sequence[Case], fresh: Sequence[Case]) -> dict[str, dict[str, int]]:
    """Return the number of published cases of each kind that no fresh case has, by component.

    A submission that answers those from a table loses nothing. Cases that ask only for shapes need no table.
    """
    unmatched: dict[str, dict[str, int]] = {}
    for component in dict.fromkeys(case.component for case in published):
        mine = [case for case in published if case.component == component and not case.shape_only]
        counts = Counter(map(find_kind, mine))
        drawn = {find_kind(case) for case in fresh if case.component == component}
        if left := {kind: counts[kind] for kind in KINDS if counts[kind] and kind not in drawn}:
            unmatched[component] = left
    return unmatched


@dataclass(frozen=True, slots=True)
class FreshCases:
    """Fresh cases as the text of a file, and the reason for each component that has fewer than requested."""

    text: str
    short: Mapping[str, str]


def draw_fresh(
    assignment: Assignment, spec: Spec, seed: str, declared: Mapping[str, str] = MappingProxyType({})
) -> FreshCases:
    """Draw fresh cases with golden values for every component of an assignment, as a text for `load_own_cases`.

    `declared` are the options of conventions that its adapter declares: cases of other options would count for nobody.
    The same assignment and seed give the same text. Only error scales, which are measured, may differ in their last
    digit from machine to machine, as those of published cases may.
    """
    published = list_published_cases(assignment, spec)
    parts: list[str] = []
    short: dict[str, str] = {}
    for part in assignment.parts if assignment.fresh else ():
        cases = [case for case in published if case.component == part.component]
        proven = list(_ComponentDrawer(part.component, cases, assignment, spec, seed, declared).draw())
        if len(proven) < assignment.fresh:
            short[part.component] = f"{len(proven)} of {assignment.fresh}: no published case can be drawn again"
        if proven:
            parts.append(f"- {textwrap.indent(_format_file(part.component, proven), '  ').lstrip()}")
    return FreshCases("".join(parts) or "[]\n", short)


def load_fresh(text: str, spec: Spec) -> list[Case]:
    """Return the cases of such a text, checked as `load_own_cases` checks a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.yaml"
        replace_file(path, text)  # which names the file if the disk is full
        return load_own_cases(path, spec)


@dataclass(frozen=True, slots=True)
class _Proven:
    """A fresh case: its text, its golden values, and the case as it is read."""

    text: str
    golden: Mapping[str, Any]
    case: Case
    template: Template | None = None


def _format_file(component: str, proven: Sequence[_Proven]) -> str:
    """Return a file of cases outside the spec, which contains their golden values itself."""
    golden = render({one.case.id: one.golden for one in proven if one.golden})
    cases = "".join(one.text for one in proven)
    return f"component: {component}\ncases:\n{cases}golden:\n{textwrap.indent(golden, '  ')}\n"


class _ComponentDrawer:
    """Draws the fresh cases of one component."""

    def __init__(
        self,
        component: str,
        cases: Sequence[Case],
        assignment: Assignment,
        spec: Spec,
        seed: str,
        declared: Mapping[str, str],
    ) -> None:
        self.component, self.assignment, self.spec, self.seed = component, assignment, spec, seed
        self.contract = spec.contracts[component]
        self.seen = {_identify_call(case) for case in spec.cases_of(component)}
        listed = YamlFile.read(spec.root / "cases" / f"{component}.yaml").data["cases"] if cases else []
        raw = {item["id"]: item for item in listed}
        templates = [Template(case, raw[case.id], self.contract, declared) for case in cases]
        self.refusals = [
            template for template in templates if template.case.error and not spec.is_advice(template.case)
        ]
        self.has_extremes = any(find_kind(case) == "extreme" for case in cases)
        fit = [template for template in templates if explain_unfit(template, spec) is None]
        # Use cases whose numbers stand in the file only if there are no others: their numbers are shuffled.
        self.templates = [template for template in fit if not template.has_values] or fit

    def draw(self) -> Iterator[_Proven]:
        """Draw and prove as many cases as requested, or as many as there can be; then one of each rare kind."""
        ordinary: list[_Proven] = []
        for number, templates in zip(range(1, self.assignment.fresh + 1), self._choose_templates(), strict=False):
            for template in templates:
                proven = self._attempt(template, self._name(number))
                if proven is not None:
                    ordinary.append(proven)
                    yield proven
                    break
        if ordinary:
            yield from self._draw_gradient(ordinary)
            yield from self._draw_extreme()
            yield from self._draw_refusals(ordinary)

    def _name(self, last: str | int) -> str:
        return f"fresh-{self.component.replace('_', '-')}-{last}"

    def _draw_gradient(self, ordinary: Sequence[_Proven]) -> Iterator[_Proven]:
        """Draw a gradient, if a published case has one and none is drawn yet: few cases would leave it to a table."""
        if not any(one.case.cotangent is not None for one in ordinary):
            gradients = [template for template in self.templates if template.case.cotangent is not None]
            yield from self._draw_one(gradients, "gradient")

    def _draw_extreme(self) -> Iterator[_Proven]:
        """Draw a case whose scores overflow a plain exponential, if a published case has such scores."""
        raised = (raise_scores(template, self.seed) for template in self.templates if self.has_extremes)
        yield from self._draw_one(filter(None, raised), "extreme")

    def _draw_one(self, templates: Iterable[Template], name: str) -> Iterator[_Proven]:
        """Draw a case from the first template that gives one."""
        for template in templates:
            if proven := self._attempt(template, self._name(name)):
                yield proven
                return

    def _draw_refusals(self, ordinary: Sequence[_Proven]) -> Iterator[_Proven]:
        """Draw calls that must be refused: published faults in a fresh call, which is drawn too if there is none."""
        faults: dict[str | None, list[Template]] = {}
        random = SeededRandom(self.seed, self._name("refusal"))
        for template in sorted(self.refusals, key=lambda t: random.number(t.case.id)):
            faults.setdefault(template.case.base, []).append(template)
        drawn = {one.template.case.id: one for one in ordinary if one.template}
        fit = {template.case.id: template for template in self.templates}
        # Prefer a base that is drawn already, because a proof takes time; then the one with most published faults.
        for base in sorted(faults, key=lambda base: (base not in drawn, -len(faults[base]))):
            if base not in drawn and base in fit and (proven := self._attempt(fit[base], self._name("base"))):
                drawn[base] = proven
                yield proven
            if base in drawn and (found := list(self._apply_faults(faults[base], drawn[base]))):
                yield from found
                return

    def _apply_faults(self, faults: Sequence[Template], base: _Proven) -> Iterator[_Proven]:
        """Yield refusals of a proven call: some of its published faults, in other sizes and with other numbers."""
        assert base.template is not None, "it was drawn from one"
        number = 1
        for fault in faults:
            random = SeededRandom(self.seed, self._name(f"refusal-{number}"))
            try:
                raw = redraw_refusal(fault.raw, base.template.case, base.case, random)
                case = self._read_refusal(raw, base)
            except Unfit:
                continue
            yield _Proven(_format_item(raw), {}, case)
            number += 1
            if number > _REFUSALS:
                return

    def _read_refusal(self, raw: Raw, base: _Proven) -> Case:
        """Read a refusal with its base; Unfit if the call keeps the contract, or breaks it elsewhere."""
        refusal = _Proven(_format_item(raw), {}, base.case)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{self.component}.yaml"
            try:
                cases = self._write_and_read(path, [base, refusal])
            except SpecError as error:
                raise Unfit(str(error)) from error
        case = next(case for case in cases if case.id == raw["id"])
        published = (other for other in self.spec.cases_of(self.component) if other.error is not None)
        if _identify_refusal(case) in map(_identify_refusal, published):
            raise Unfit("this call is published")
        return case

    def _choose_templates(self) -> Iterator[list[Template]]:
        """Yield the templates for each fresh case, the best first: kinds of cases in turn, none twice in a row."""
        kinds: dict[Any, list[Template]] = {}
        random = SeededRandom(self.seed, self.component)
        for template in sorted(self.templates, key=lambda t: random.number(t.case.id)):
            kinds.setdefault(template.kind, []).append(template)
        used: Counter[Any] = Counter()
        for kind in _alternate_kinds(sorted(kinds, key=repr)):
            same = kinds[kind]
            first = used[kind] % len(same)
            used[kind] += 1
            yield [*same[first:], *same[:first], *(t for other, like in kinds.items() if other != kind for t in like)]

    def _attempt(self, template: Template, id_: str) -> _Proven | None:
        """Return a case that reveals what it should, or None."""
        proofs = 0
        for attempt in range(_ATTEMPTS):
            try:
                raw = redraw_case(template, SeededRandom(self.seed, id_, attempt))
                proven = self._prove(raw, template)
            except _Inconclusive:
                proofs += 1
                if proofs == _PROOFS:
                    break
            except Unfit:
                continue
            else:
                self.seen.add(_identify_call(proven.case))
                return proven
        return None

    def _prove(self, raw: Raw, template: Template) -> _Proven:
        """Derive a case; Unfit if it repeats another one, or does not reveal what it should."""
        from goldformer.spec.oracle.balls import Unproven  # only drawing needs python-flint
        from goldformer.spec.oracle.derive import derive
        from goldformer.spec.oracle.write import golden_entry

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{self.component}.yaml"
            case = self._read(path, raw)
            if find_equal_sizes(case, self.contract):
                raw = {**raw, "equal_sizes": "sizes that are equal are so in the case that this one is like"}
                case = self._read(path, raw)
            if _identify_call(case) in self.seen:
                raise Unfit("these inputs are published, or drawn already")
            if why := case.explain_unfit(choose_options(template, self.spec)):
                raise Unfit(why)
            self._check_variety(case)
            try:
                derived = derive(case, self.contract, advice=False)
            except Unproven as error:
                raise _Inconclusive(str(error)) from error
            file = YamlFile.read(path)
            digest = derivation_digest(file.data["cases"][0], self.contract, self.spec.conventions)
            proven = _Proven(_format_item(raw), golden_entry(digest, derived, case), case)
            (case,) = self._write_and_read(path, [proven])
            self._check_proven(case)
        return replace(proven, case=case, template=template)

    def _write_and_read(self, path: Path, proven: Sequence[_Proven]) -> list[Case]:
        """Return the cases as a reader of their file has them, with their golden values."""
        path.write_text(_format_file(self.component, proven), encoding="utf-8")
        return read_cases(YamlFile.read(path), self.spec.contracts, self.spec.conventions, underived=False)

    def _check_variety(self, case: Case) -> None:
        """Raise _Inconclusive, before the proof, for a case that decodes the same word or sentence again and again."""
        from goldformer.spec.oracle.derive import apply, choose_options

        if not {"ids", "scores"} <= set(self.contract.outputs):
            return
        options = {name: self.spec.conventions[name].default for name in case.conventions}
        case = case.under(options)
        arrays = (case.input_arrays, case.param_arrays, case.attributes)
        ids = apply(self.component, float, *arrays, choose_options(case, self.contract, options))["ids"]
        sentences = ids.reshape(-1, ids.shape[-1])
        if len(np.unique(sentences)) < _WORDS or len(np.unique(sentences, axis=0)) < 2:
            raise _Inconclusive("too few words are decoded")

    def _read(self, path: Path, raw: Raw) -> Case:
        path.write_text(f"component: {self.component}\ncases:\n{_format_item(raw)}", encoding="utf-8")
        try:
            (case,) = read_cases(YamlFile.read(path), self.spec.contracts, self.spec.conventions, underived=True)
        except SpecError as error:
            raise Unfit(str(error)) from error
        return case

    def _check_proven(self, case: Case) -> None:
        """Raise _Inconclusive for a case that lint refuses, or that one of the assignment's dtypes cannot judge."""
        for problem in lint_cases(replace(self.spec, cases={case.id: case})):
            raise _Inconclusive(problem.message)
        assert case.golden is not None, "it was derived"
        if case.golden.margin is not None and case.golden.margin <= max(map(least_margin, self.assignment.dtypes)):
            raise _Inconclusive("rounding may turn a decision")
        if case.golden.peak > min(LARGEST[dtype] for dtype in self.assignment.dtypes):
            raise _Inconclusive("intermediate numbers overflow")


def _format_item(raw: Raw) -> str:
    """Return a case as an item of a list of cases."""
    return yaml.dump([raw], Dumper=_Dumper, sort_keys=False, width=108, allow_unicode=True, default_flow_style=None)


def _alternate_kinds(kinds: Sequence[Any]) -> Iterator[Any]:
    """Yield kinds of cases endlessly: the one with most inputs, with fewest, a gradient, another one, and so on."""
    plain = sorted((kind for kind in kinds if not kind[0]), key=lambda kind: -len(kind[1]))
    plain = [*plain[:1], *plain[1:][-1:], *plain[1:-1]]
    gradients = [kind for kind in kinds if kind[0]]
    endless_plain, endless_gradients = cycle(plain or gradients), cycle(gradients or plain)
    for number in count() if kinds else ():
        yield next(endless_gradients if number % 4 == 2 else endless_plain)


def _identify_call(case: Case) -> tuple[Any, ...]:
    """Return what identifies a call: its inputs and attributes."""
    arrays = tuple((name, array.shape, array.tobytes()) for name, array in case.input_arrays.items())
    return case.cotangent is not None, arrays, tuple(case.attributes.items())


def _identify_refusal(case: Case) -> tuple[Any, ...]:
    """Return what identifies a call that is refused, which may differ from others in its parameters only."""
    return _identify_call(case), tuple(
        (name, array.shape, array.tobytes()) for name, array in case.param_arrays.items()
    )
