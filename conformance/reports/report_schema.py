"""The JSON that `goldformer check --json` prints, as types that are checked and published as a JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from goldformer.conformance.diagnosis.diagnosed import CheckDiagnosis
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import Outcome

#: JSON has no infinity and no NaN: they are words.
_NUMBER: Final = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AdapterFacts(_Closed):
    """The implementation that was checked, and what it declares."""

    name: str
    version: str
    origin: str
    arrays: str
    conventions: dict[str, str]
    hints: list[str]


class EditionFacts(_Closed):
    """An edition of the spec, its version, and the digest of its cases and golden values: a claim names all three."""

    edition: str
    version: str
    digest: str


class SpecFacts(EditionFacts):
    """The edition of the components that are judged; `also` has the others if they are of several."""

    also: list[EditionFacts] = []


class ComponentFacts(_Closed):
    """A row of the summary.

    `refused` of `bad_inputs` are refused. `cases_judged` of `cases` with golden values were judged. The declared
    options admit `cases_admitted`, gradients that are declined not counted. If fewer than `cases_needed` were judged,
    the state is "partial" unless something fails, and `cases_lost` says why. `unseen_mistakes` are those that no check
    which ran is known to show. `judged_up_to` is the largest size of each axis among the judged cases.
    """

    component: str
    passed: int
    failed: int
    not_implemented: int
    skipped: int
    worst_ratio: float | None
    state: str
    refused: int
    bad_inputs: int
    cases_judged: int
    cases_admitted: int
    cases_needed: int
    cases: int
    cases_lost: list[str]
    unseen_mistakes: list[str]
    judged_up_to: dict[str, int]


class FindingFacts(_Closed):
    """A sentence of the diagnosis, such as "Mistake found", and the ids of the mistakes that it names.

    An `inner` one belongs to the component of the one before it.
    """

    label: str
    text: str
    inner: bool
    mistakes: list[str]


@dataclass(frozen=True)
class VerdictFacts(CheckDiagnosis, Verdict):
    """A verdict and its diagnosis."""


class RunReport(_Closed):
    """A whole run; `problem` says why it gives no verdict, such as that it was stopped.

    The outcome is "conforms", "partial" (nothing wrong, in too few cases), "fails" or "unusable".
    """

    model_config = ConfigDict(title="Report")  # its name in the published schema

    goldformer: str
    spec: SpecFacts
    python: str
    adapter: AdapterFacts
    device: str
    outcome: Outcome
    components: list[ComponentFacts]
    not_implemented: list[str]
    diagnosis: list[FindingFacts]
    problem: str
    verdicts: list[VerdictFacts]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a report."""
    schema = _allow_words(RunReport.model_json_schema())
    assert isinstance(schema, dict)
    return schema


def _allow_words(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_allow_words(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {**{key: value for key, value in schema.items() if key != "type"}, **_NUMBER}
    return {key: _allow_words(inner) for key, inner in schema.items()}
