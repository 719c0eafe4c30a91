"""Programs with mistakes, as entries of a table in YAML, and what the diagnosis says of them.

tests/conformance/diagnosis/named.yaml is the table of the tests, benchmarks/bugs.yaml one of the bench.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from goldformer.adapters import find_adapter
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import (
    ADAPTER_LABELS,
    CODE_LABELS,
    FIRST_SEEN,
    HOLDS,
    REPEAT,
    SMALLEST,
    Finding,
)
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.conformance.selection import Selection, checks
from goldformer.spec import Case, Spec
from goldformer.spec.formulas.options import OPTIONS

PROGRAMS = Path(__file__).with_name("named_programs")
#: The most numbers of a case, and the most cases of a component, of values and of gradients.
LARGEST, MOST = 5000, 12
#: What is said of a failure without calling it anything.
UNNAMED = {FIRST_SEEN, *CODE_LABELS, HOLDS, SMALLEST, REPEAT}
_FOLDERS = tempfile.TemporaryDirectory(prefix="named-")


@dataclass(frozen=True)
class Entry:
    """A program, how it is judged, and what must be said of it.

    The program is a file with edits of its text, or `code`, or the textbook with the mistakes `made` under the options
    `under`. `cases` are "small" ones, those of "gradients" too, "large" ones too, or all "checks" with properties.
    `finds` are the findings, each a label with the ids that it names; `place` and `says` are words that they say.
    """

    components: tuple[str, ...]
    finds: tuple[str, ...] | None = None
    file: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    code: str = ""
    made: tuple[str, ...] = ()
    under: Mapping[str, str] = field(default_factory=dict)
    declares: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    cases: str = "small"
    place: str = ""
    says: tuple[str, ...] = ()
    folder: Path = PROGRAMS

    @property
    def id(self) -> str:
        """Return its program, its components and the last finding."""
        program = self.file or "+".join((*self.made, *self.under.values())) or "code"
        last = (self.finds or ("right",))[-1].replace(" ", "_")
        return "-".join((program, *self.components, *([] if self.dtype == "float32" else [self.dtype]), last))

    def write_program(self) -> str:
        """Return the program's text with the edits; the text that each replaces stands there once."""
        source = self.code or (self.folder / f"{self.file}.py").read_text(encoding="utf-8")
        for old, new in self.edits:
            assert source.count(old) == 1, f"{self.file}: {old!r} stands there {source.count(old)} times"
            source = source.replace(old, new)
        return source

    def make_adapter(self, spec: Spec) -> Adapter:
        """Return an adapter of the program that has only the components of the entry."""
        if self.file or self.code:
            path = Path(tempfile.mkdtemp(dir=_FOLDERS.name), "mine.py")
            path.write_text(self.write_program(), encoding="utf-8")
            adapter = find_adapter(str(path), spec)
        else:
            layers = [OPTIONS[option] for option in self.under.items()]
            layers += [implementations()[id_].steps for id_ in self.made]
            adapter = Adapter.from_object(build_textbook(*layers, CONVENTIONS={}), "mine.py", spec)
        functions = {name: adapter.functions[name] for name in self.components}
        gradients = {name: gradient for name, gradient in adapter.gradients.items() if name in functions}
        declared = {**adapter.conventions, **self.declares}
        return replace(adapter, functions=functions, gradients=gradients, conventions=declared)

    def choose_cases(self, spec: Spec) -> Iterator[Case]:
        """Yield cases of every size, because each failing case takes a while to explain."""
        for component in self.components:
            listed = [case for case in spec.cases_of(component) if case.error is None and not case.full_size]
            listed = [case for case in listed if "dropout" not in case.id]
            listed = [case for case in listed if self.cases == "large" or case.size < LARGEST]
            gradients = [case for case in listed if case.cotangent is not None and self.cases == "gradients"]
            values = sorted((case for case in listed if case.cotangent is None), key=lambda case: case.size)
            step = 1 if self.cases == "large" else -(-len(values) // MOST)
            yield from (*values[::step], *gradients[:MOST])

    def run_checks(self, spec: Spec) -> Iterator[Judgement]:
        """Yield the judged checks."""
        bench = Bench(spec, self.make_adapter(spec), self.dtype, "cpu")
        if self.cases == "checks":
            yield from (check() for check in checks(bench, Selection((self.dtype,), self.components)))
        else:
            yield from (judge_case(case, bench) for case in self.choose_cases(spec))


@dataclass(frozen=True)
class Said:
    """Return what the diagnosis says of the program of an entry."""

    failing: tuple[str, ...]
    finds: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def whole(self) -> str:
        """Return all sentences."""
        return "\n".join(self.texts)


def judge(entry: Entry, spec: Spec) -> Said:
    """Return what the diagnosis says of the program of an entry."""
    # Dropout is not to hang on what ran before.
    torch.manual_seed(0)
    run = Diagnosis(spec).explain_all(entry.run_checks(spec))
    found = [finding for finding in diagnose(run, spec) if finding.label not in UNNAMED]
    failing = tuple(verdict.check for verdict in run if verdict.bad)
    texts = tuple(" ".join(finding.text.split()) for finding in found)
    return Said(failing, tuple(map(_describe, found)), texts)


def _describe(finding: Finding) -> str:
    if not finding.inner and finding.label not in ADAPTER_LABELS:
        return f"{finding.label}: {finding.text}"
    return ": ".join((finding.label, *([" + ".join(finding.mistakes)] if finding.mistakes else [])))


def read_entries(path: Path, folder: Path = PROGRAMS) -> list[Entry]:
    """Read a table."""
    return [read_entry({**given, "folder": folder}) for given in yaml.safe_load(path.read_text(encoding="utf-8"))]


def read_entry(given: Mapping[str, Any]) -> Entry:
    """Read an entry."""
    made: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return Entry(**made | {"edits": tuple((old, new) for old, new in given.get("edits", ()))})
