"""The verdict on one check: frozen, serialisable, the same for pytest, command line and reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from goldformer.adapters.process.patience import NOT_ASKED
from goldformer.spec.tables import Setting

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class Status(Enum):
    """The ways in which a check ends."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERRORED = "errored"


Reason = Literal[
    "",  # passed
    # failed
    "wrapper",
    "wrong-value",
    "wrong-shape",
    "wrong-dtype",
    "wrong-device",
    "not-finite",
    "not-an-array",
    "nothing-returned",
    "missing-output",
    "mutated-input",
    "way",
    "no-error",
    "no-gradient",
    "property",
    "bitwise",
    "moved",
    # errored
    "raised",
    "wrong-parameters",
    "crashed",
    "timeout",
    "protocol",
    "memory",
    "output-limit",
    "killed",
    "tampered",
    "fault",
    # skipped
    "not-implemented",
    "convention",
    "dtype",
    "device",
    "not-checkable",
    "not-wrapped",
    # skipped, unless it is required
    "advice",
    "robustness",
    "precision",
    "gpu",
]

#: The kinds of checks: values, gradients, shapes only, an error for bad input, or a law that holds for every input.
#: A case all of whose clauses are SHOULD asks for "advice".
Asks = Literal["values", "gradients", "advice", "shape", "refusal", "law"]

#: The reasons of departures that are reported but fail only if they are required: a departure from advice, a bad input
#: that is accepted, a result that is right to a coarser dtype, and code that is right here and would fail on a GPU.
TOLERATED: Final[tuple[Reason, ...]] = ("advice", "robustness", "precision", "gpu")

#: The reasons that only a process within limits can have.
WITHIN_LIMITS: Final[tuple[Reason, ...]] = ("memory", "output-limit", "killed", "tampered")

#: The reason that only grading has: an output is missing that the assignment's solution returns.
WITHHELD: Final[Reason] = "missing-output"

#: The mistake that every check shows whose result does not come again.
NONDETERMINISM: Final = "nondeterminism"

#: The reasons of failures that no mistake in the code explains.
NO_MISTAKE: Final[tuple[Reason, ...]] = ("wrapper", "bitwise")

#: The beginning of the message if a call was refused, which an undeclared option permits; the option follows.
PERMITTED: Final = "refused, which is permitted by "

#: The beginning of the message if a transformation such as torch.compile cannot take a function.
NOT_WRAPPED: Final = "not wrapped: "

#: The reasons for which there is no result to judge: the implementation did not answer.
UNANSWERED: Final[tuple[Reason, ...]] = ("crashed", "timeout", "protocol", *WITHIN_LIMITS)

#: The reasons for which a check is errored by the implementation: the call itself went wrong. A check is errored by
#: goldformer only for the reason "fault".
ERRORS: Final[tuple[Reason, ...]] = ("raised", "wrong-parameters", *UNANSWERED)


def replace_enums(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping without enums, which the workers of pytest-xdist cannot send, not even those that are words."""
    return {name: value.value if isinstance(value, Enum) else value for name, value in items}


@dataclass(frozen=True, slots=True)
class Element:
    """One number of an output."""

    index: tuple[int, ...]
    # Ids are integers, also after they were written to JSON and read back.
    expected: float | int | bool
    got: float | int | bool


@dataclass(frozen=True, slots=True)
class Grid:
    """A window of an output in its last two axes: the expected rows and the actual ones.

    `lead` are the indices in the axes before these, `origin` is the corner of the window, `shape` the whole shape.
    """

    lead: tuple[int, ...]
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    expected: tuple[tuple[float, ...], ...]
    got: tuple[tuple[float, ...], ...]


class Limit(StrEnum):
    """The limit that an output exceeds: of elements, of all on average, or of a factor that all share or a row."""

    ELEMENT = "element"
    AVERAGE = "average"
    COMMON = "common"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one output: its first and its worst wrong element, the number of wrong ones, and a window.

    `tolerance` is that of the worst element, `ratio` the largest error ÷ tolerance, by the `limit` that it exceeds.
    It `is_zero` if every compared number is 0, and not every expected one.
    """

    output: str
    wrong: int
    compared: int
    tolerance: float
    ratio: float
    first: Element | None
    worst: Element | None
    grid: Grid | None = None
    is_zero: bool = False
    limit: Limit = Limit.ELEMENT


#: The results of comparing a function with itself under a transformation.
Agreement = Literal["equal", "both right", "wrapped is wrong", "both wrong", "only wrapped is right"]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The comparison of a function with itself under a transformation, such as torch.compile, the `wrapper`.

    `agreement` says which of the two is right, and of two that are whether they are equal. `distance` is the largest
    difference between the two ÷ tolerance, None where a tolerance of 0 or chance leaves nothing to measure.
    """

    wrapper: str
    agreement: Agreement
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class Invariance:
    """The closeness with which a property holds: bit for bit, or by a `distance`, the largest one ÷ tolerance."""

    setting: Setting
    bitwise: bool
    distance: float


class CheckKey(NamedTuple):
    """The identity of a verdict within a run."""

    check: str
    component: str
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check in one dtype on one device.

    `ratio` is the largest error ÷ tolerance over all outputs, None where nothing was measured.
    `differences` are the outputs that are wrong, in the order in which data flows to them.
    `by_hand` says that the gradients are those of the implementation's own backward pass, at least in part.
    `wrapped` compares the function with itself under the transformation that the run asks for.
    `invariances` say how closely a property holds that compares the same call in other settings.
    `hidden_nan` are the inputs in which a NaN that the mask hides reaches the output.
    `rounded_once` says that all outputs in a half type are those of float32, rounded once. `visible` is the smallest
    share of an output, in the root mean square, whose change shows in a half type.
    What explains a failure stands beside it, in its diagnosis.
    """

    check: str
    kind: Literal["case", "property"]
    component: str
    title: str
    status: Status
    reason: Reason
    message: str
    dtype: str
    device: str
    clauses: tuple[str, ...]
    source: str
    catches: tuple[str, ...] = ()
    ratio: float | None = None
    differences: tuple[Difference, ...] = ()
    detail: str = ""
    reproduce: str = ""
    seconds: float = 0.0
    asks: Asks = "values"
    by_hand: bool = False
    wrapped: Wrapped | None = None
    invariances: tuple[Invariance, ...] = ()
    hidden_nan: tuple[str, ...] = ()
    rounded_once: bool | None = None
    visible: float | None = None

    @property
    def key(self) -> CheckKey:
        """The check, with its component, dtype and device: no other verdict of a run has the same."""
        return CheckKey(self.check, self.component, self.dtype, self.device)

    @property
    def step(self) -> str:
        """The check in words, while it runs."""
        return f"{self.kind} {self.check} of {self.component} in {self.dtype}"

    @property
    def bad(self) -> bool:
        """Return True if the implementation failed the check or could not answer it."""
        return self.status in (Status.FAILED, Status.ERRORED) and not self.is_fault

    @property
    def was_asked(self) -> bool:
        """Return False if a call was not made any more, because too many before it got no answer."""
        return not (self.reason in UNANSWERED and self.message.startswith(NOT_ASKED))

    @property
    def is_fault(self) -> bool:
        """Return True if goldformer itself broke, so that the check says nothing about the implementation."""
        return self.reason == "fault"

    @property
    def is_judged(self) -> bool:
        """Return True if the check says something of the implementation: it passed, failed, errored or departs."""
        return self.status is Status.PASSED or self.bad or self.is_tolerated

    @property
    def is_tolerated(self) -> bool:
        """Return True if the implementation departs in a way that fails only if it is required."""
        return self.status is Status.SKIPPED and self.reason in TOLERATED

    def as_json(self) -> dict[str, Any]:
        """Return plain data, for --json and for the workers of pytest-xdist."""
        return asdict(self, dict_factory=replace_enums)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        """Read the plain data of as_json, also after tuples became lists, and next to the data of a diagnosis."""
        return _make_reader().validate_python(data)


@cache
def _make_reader() -> TypeAdapter[Verdict]:
    from pydantic import TypeAdapter  # only what comes from another process is read

    return TypeAdapter(Verdict)
