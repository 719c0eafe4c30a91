"""The data of a baseline, frozen: what was asked for, who gave it in which environment, and the result of each call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from goldformer.adapters import DTYPES
from goldformer.conformance.baseline.array_files import StoredArray
from goldformer.spec.strict import StrictModel

#: A check repeats a recording: a manifest must not ask for endless calls, or for more threads or devices than any
MOST_THREADS: Final = 1024
MOST_DEVICES: Final = 64


def _require_one_line(text: str) -> str:
    """Return a text without a line break: messages quote it, and build servers run commands at the start of a line."""
    if text != " ".join(text.splitlines()):
        raise PydanticCustomError("one_line", "has a line break, expected one line")
    return text


#: A name that goldformer itself wrote.
Line = Annotated[str, AfterValidator(_require_one_line)]


def _require_different(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return words that are all different: each asks for calls of its own."""
    for word, count in Counter(words).items():
        if count > 1:
            raise PydanticCustomError(
                "different", "{word} is listed {count} times, expected once", {"word": word, "count": count}
            )
    return words


#: A list of the file, as a tuple.
Words = Annotated[tuple[Line, ...], Field(strict=False), AfterValidator(_require_different)]


class BaselineError(Exception):
    """A baseline that cannot be read, written or used; the message says what to do."""


class Key(NamedTuple):
    """One call: a case in a dtype on a device; or, in place of the case, a property and its component in words."""

    case: str
    dtype: str
    device: str


class BaselineRequest(StrictModel):
    """The calls to record; no components means all of them."""

    dtypes: Annotated[Words, Field(min_length=1, max_length=len(DTYPES))]
    devices: Annotated[Words, Field(min_length=1, max_length=MOST_DEVICES)]
    components: Words
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    tf32: bool


class Recording(StrictModel):
    """The implementation that gave some results, and its environment: all other things that numbers may depend on.

    `reason` says why an update accepted them.
    """

    given: str
    name: str
    version: str
    arrays: str
    conventions: dict[str, str]
    environment: dict[str, str]
    reason: str = ""

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class Output:
    """The values of one output, and the case's own tolerance for all of them, None if it derives none."""

    stored: StoredArray
    tolerance: float | None = None
    recording: int = 0


class Ended(StrictModel):
    """The end of a call without a result: the reason of its verdict, and its message without places in files."""

    reason: Line
    message: str
    recording: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of one call: outputs, or its end. `inputs` is the digest of its arguments."""

    component: str
    inputs: str
    outputs: Mapping[str, Output] = field(default_factory=dict)
    ended: Ended | None = None

    @property
    def recordings(self) -> Iterator[int]:
        """The recordings that gave a part of it, by their index."""
        yield from (output.recording for output in self.outputs.values())
        if self.ended is not None:
            yield self.ended.recording


@dataclass(frozen=True, eq=False, slots=True)
class Baseline:
    """All results, by call.

    `spec` is the digest of the spec's files. `absent` says why calls gave nothing, and is not stored.
    """

    goldformer: str
    spec: str
    request: BaselineRequest
    recordings: tuple[Recording, ...]
    entries: Mapping[Key, Entry]
    absent: Mapping[Key, str] = field(default_factory=dict)

    def conventions(self, entry: Entry) -> Mapping[str, str]:
        """Return the conventions that were declared when an entry was recorded."""
        return self.recordings[next(entry.recordings)].conventions

    @property
    def arrays(self) -> dict[str, dict[str, StoredArray]]:
        """The values of all outputs, by component and by their names in its file."""
        found: dict[str, dict[str, StoredArray]] = {}
        for key, entry in self.entries.items():
            for name, output in entry.outputs.items():
                found.setdefault(entry.component, {})[name_array(key, name)] = output.stored
        return found


def name_array(key: Key, output: str) -> str:
    """Return the name of an output in the file of its component."""
    return "/".join((*key, output))
