"""The diagnosis of a run: its verdicts, the table of evidence, and what was found out of single checks."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from goldformer.conformance.diagnosis.causes import Causes
from goldformer.conformance.diagnosis.evidence import Evidence, Match
from goldformer.conformance.judging.decision import describe_fault
from goldformer.conformance.judging.verdict import CheckKey, Verdict, replace_enums

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a mistake that nothing known explains, found by calls in which only one part acts.

    `names` are the names of what is wrong, `holds` of what is right by itself. `wrong_call` is a wrong call, as changes
    of a case, with its first wrong element. `is_loop` says that a loop of decoding is wrong, and not its model.
    """

    names: tuple[str, ...]
    holds: tuple[str, ...] = ()
    wrong_call: str = ""
    is_loop: bool = False


@dataclass(frozen=True, slots=True)
class KeptState:
    """A failure that depends on earlier calls of the implementation, which keeps state between calls.

    `after` are the ids of the cases after which the case is wrong, in their order; none if they are many. If it
    `is_proven`, the case was right when it was called first; otherwise only the sizes of the calls hint at it.
    """

    after: tuple[str, ...]
    is_proven: bool


@dataclass(frozen=True)
class CheckDiagnosis:
    """The diagnosis of one check.

    `matches` are the known mistakes and options that reproduce the wrong output; None if the search was skipped.
    `advice` says which option to declare instead.
    `rules_out` are the causes of other cases' matches that would fail this case, which passes. `refutes` are those that
    give another result than the implementation in a new call like this one; `confirms` are those that give the same
    result, and not that of right code.
    `place` is where the mistake is, at the failing case that shows it.
    `beyond` says what goldformer does not judge of the code, where nothing known explains the failures.
    `idle` are the parameters that change no output of it although they should, those of a whole part as "norm_1.*".
    `state` says that it is right when it is called first.
    `excluded` are the mistakes that a property is known to show and that cannot be its failure: a passing case
    contradicts them.
    `reproduce` is the line that shows a failure again which depends on earlier calls.
    `fault` is an exception of goldformer's own that ended the search for causes: a line that describes it, and its
    traceback.
    """

    matches: tuple[Match, ...] | None = None
    advice: str = ""
    rules_out: tuple[Causes, ...] = ()
    refutes: tuple[Causes, ...] = ()
    confirms: tuple[Causes, ...] = ()
    place: Place | None = None
    idle: tuple[str, ...] = ()
    state: KeptState | None = None
    beyond: str = ""
    excluded: tuple[str, ...] = ()
    reproduce: str = ""
    fault: str = ""


_NOTHING: Final = CheckDiagnosis()


class Explained(NamedTuple):
    """A verdict, and its diagnosis."""

    verdict: Verdict
    diagnosis: CheckDiagnosis = _NOTHING

    @property
    def reproduce(self) -> str:
        """The line that shows the failure again."""
        return self.diagnosis.reproduce or self.verdict.reproduce

    def as_json(self) -> dict[str, Any]:
        """Return both as plain data, for --json and for the workers of pytest-xdist."""
        found = asdict(self.diagnosis, dict_factory=replace_enums)
        return {**self.verdict.as_json(), **found, "reproduce": self.reproduce}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Explained:
        """Read the plain data of as_json, also after tuples became lists: the verdict gets the line."""
        found = _make_reader().validate_python(data)
        return cls(Verdict.from_json(data), replace(found, reproduce=""))


@cache
def _make_reader() -> TypeAdapter[CheckDiagnosis]:
    from pydantic import TypeAdapter  # only what comes from another process is read

    return TypeAdapter(CheckDiagnosis)


@dataclass(frozen=True)
class DiagnosedRun:
    """The verdicts of a run as they were judged, and what explains them.

    `notes` have what was found out of single checks besides the evidence.
    """

    verdicts: tuple[Verdict, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    notes: dict[CheckKey, CheckDiagnosis] = field(default_factory=dict)

    @classmethod
    def of(cls, explained: Iterable[Explained]) -> DiagnosedRun:
        """Return a run of verdicts with their diagnoses."""
        listed = list(explained)
        run = cls(tuple(verdict for verdict, _ in listed))
        for verdict, diagnosis in listed:
            if diagnosis.matches is not None:
                run.evidence.add_matches(verdict.key, diagnosis.matches)
            run.notes[verdict.key] = replace(diagnosis, matches=None)
        return run

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def about(self, verdict: Verdict) -> CheckDiagnosis:
        """Return the diagnosis of a check, as far as it is known."""
        key = verdict.key
        return replace(
            self.get_note(verdict),
            matches=self.list_matches(verdict),
            rules_out=() if verdict.bad else self.evidence.list_ruled_out(key),
            refutes=self.evidence.list_redrawn(key, equal=False),
            confirms=self.evidence.list_redrawn(key, equal=True),
        )

    def get_note(self, verdict: Verdict) -> CheckDiagnosis:
        """Return what was found out of a check besides the evidence."""
        return self.notes.get(verdict.key, _NOTHING)

    def explain(self, verdict: Verdict) -> Explained:
        """Return a verdict with its diagnosis."""
        return Explained(verdict, self.about(verdict))

    def list_matches(self, verdict: Verdict) -> tuple[Match, ...] | None:
        """Return the known mistakes and options that reproduce a failure; None if the search was skipped."""
        return self.evidence.list_matches(verdict.key) if verdict.bad else None

    def list_catches(self, verdict: Verdict) -> tuple[str, ...]:
        """Return the mistakes that a check is known to show, without those that cannot be its failure."""
        excluded = self.get_note(verdict).excluded
        return tuple(id_ for id_ in verdict.catches if id_ not in excluded)

    def note(self, key: CheckKey, **found: Any) -> None:
        """Note what was found out of a check: fields of its CheckDiagnosis."""
        self.notes[key] = replace(self.notes.get(key, _NOTHING), **found)

    @contextmanager
    def keep_verdicts(self, about: Verdict | None = None) -> Iterator[None]:
        """Note an exception of the diagnosis, of a check or of the whole run, and go on: no verdict depends on it."""
        try:
            yield
        except Exception as error:
            verdict = about or next((v for v in self.verdicts if v.bad), self.verdicts[0])
            text = f"{describe_fault(error)}\n{''.join(traceback.format_exception(error))}"
            self.note(verdict.key, fault=self.get_note(verdict).fault or text)

    def select(self, keeps: Callable[[Verdict], bool]) -> DiagnosedRun:
        """Return the run with some of its verdicts, and all that is known."""
        return replace(self, verdicts=tuple(filter(keeps, self.verdicts)))

    def as_json(self) -> list[dict[str, Any]]:
        """Return every verdict with its diagnosis as plain data."""
        return [self.explain(verdict).as_json() for verdict in self.verdicts]

    def repeat_with(self, write: Callable[[Explained], str]) -> DiagnosedRun:
        """Return the run with another line to repeat each check."""
        verdicts = tuple(replace(v, reproduce=write(self.explain(v))) for v in self.verdicts)
        notes = {key: replace(note, reproduce="") for key, note in self.notes.items()}
        return replace(self, verdicts=verdicts, notes=notes)
