"""What a check requires and tolerates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from goldformer.spec.oracle.rounding import TF32

#: The dtype to whose tolerances a result may be right. Only float64 has one: the tolerances of float16 and bfloat16
#: are so wide that mistakes hide in them. A result that is wrong in float32 and right to them may be either, so it
#: counts as wrong.
COARSER: Final[Mapping[str, str]] = {"float64": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a check requires and tolerates.

    `strict` fails everything that is tolerated without it, and what is not implemented. `require_refusals` fails only
    bad inputs that are accepted, `require_precision` only results that are right to a coarser dtype: grading asks for
    both. `tolerance_dtype` is the dtype whose tolerances hold; without it, the dtype of the call.
    """

    strict: bool = False
    require_refusals: bool = False
    require_precision: bool = False
    tolerance_dtype: str | None = None
    #: Require of some properties that they hold bit for bit.
    bitwise: bool = False
    #: Let matrix products of float32 round their factors to TF32.
    tf32: bool = False
    #: False if verdicts say nothing of the time that calls take.
    timed: bool = True
    #: The outputs that this check requires. The first output is always required, the others only if they are here.
    required: frozenset[str] = frozenset()

    @property
    def tolerates_precision(self) -> bool:
        """Return True if a result may be right only to a coarser dtype."""
        return not (self.strict or self.require_precision)

    @property
    def tolerates_bad_inputs(self) -> bool:
        """Return True if a bad input may be accepted."""
        return not (self.strict or self.require_refusals)

    def round_to(self, dtype: str) -> str:
        """Return the dtype whose rounding results in a dtype may have, or TF32."""
        return self.tolerance_dtype or (TF32 if self.tf32 and dtype == "float32" else dtype)

    def describe_withheld(self, outputs: Iterable[str], missing: Collection[str]) -> str:
        """Name the missing outputs that are required, and say what to return; empty if none is.

        `outputs` are all that the contract has, in its order.
        """
        names = list(outputs)
        withheld = [name for name in names if name in missing and name in self.required]
        if not withheld:
            return ""
        whole = [name for name in names if name == names[0] or name in self.required]
        # A tuple holds the first outputs of the contract, in its order; a mapping holds any of them.
        in_order = whole == names[: len(whole)]
        form = f"({', '.join(whole)})" if in_order else f"{{{', '.join(f'{name!r}: …' for name in whole)}}}"
        return f"{', '.join(withheld)}: not returned; return {form}"


#: The policy of a check without options.
TOLERANT: Final = Policy()
