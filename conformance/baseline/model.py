"""The nouns of a baseline, frozen: what was asked for, who gave it where, and what each case gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from goldformer.conformance.baseline.arrays import Kept


class BaselineError(Exception):
    """A baseline that cannot be read, written or used; the message says what to do."""


class Key(NamedTuple):
    """One call: a case in a dtype on a device."""

    case: str
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class Request:
    """What is recorded; no components means all of them.

    `drawn` is how many drawn inputs of realistic size each component gets beside its golden cases.
    """

    dtypes: tuple[str, ...]
    devices: tuple[str, ...] = ("cpu",)
    components: tuple[str, ...] = ()
    drawn: int = 0
    threads: int = 1
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """Who gave some results, and where.

    `environment` is what the numbers may depend on beside the implementation itself, in words, by name.
    """

    given: str
    name: str
    version: str
    arrays: str
    conventions: Mapping[str, str]
    environment: Mapping[str, str]

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class Output:
    """What was given for one output, and the case's own tolerance for all of it, None where it derives none."""

    kept: Kept
    tolerance: float | None = None
    recording: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended that gave no result: the reason of its verdict, and its words without places in files."""

    reason: str
    message: str
    recording: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """What one call gave: outputs, or how it ended. `inputs` is the digest of its arguments."""

    component: str
    inputs: str
    outputs: Mapping[str, Output] = field(default_factory=dict)
    ended: Ended | None = None

    @property
    def recordings(self) -> Iterator[int]:
        """Which recordings it holds something of."""
        yield from (output.recording for output in self.outputs.values())
        if self.ended is not None:
            yield self.ended.recording


@dataclass(frozen=True, eq=False, slots=True)
class Baseline:
    """What was recorded, by call.

    `spec` is the digest of the spec's files. `absent` says of calls that gave nothing why not, and is not stored.
    """

    goldformer: str
    spec: str
    request: Request
    recordings: tuple[Recording, ...]
    entries: Mapping[Key, Entry]
    absent: Mapping[Key, str] = field(default_factory=dict)

    def conventions(self, entry: Entry) -> Mapping[str, str]:
        """What was declared where an entry was recorded."""
        return self.recordings[next(entry.recordings)].conventions

    @property
    def arrays(self) -> dict[str, Kept]:
        """What is kept, by the name that it has in a file."""
        return {
            array_name(key, name): output.kept
            for key, entry in self.entries.items()
            for name, output in entry.outputs.items()
        }


def array_name(key: Key, output: str) -> str:
    """The name of an output in a file of arrays."""
    return "/".join((*key, output))
