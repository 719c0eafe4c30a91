"""A finding, one sentence of the diagnosis, and the labels by which other rooms know it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from goldformer.adapters.untrusted_text import clip_text

#: The component to fix before others.
FIX_FIRST: Final = "Fix first"
#: The first failing check of a component, with its message.
FIRST_SEEN: Final = "First seen"
#: What is right in small calls is wrong in large ones.
DEPENDS_ON_SIZE: Final = "Depends on size"
#: Parameters that change no output.
NO_EFFECT: Final = "No effect"
#: It reproduces every failing case that was compared, and no passing case refutes it: a mistake of the catalogue, or an
#: option that is not declared.
MISTAKE_FOUND: Final = "Mistake found"
OPTION_FOUND: Final = "Option found"
#: The code of the mistake that was found, and the code that is right.
INSTEAD_OF: Final = "Instead of"
WRITE: Final = "Write"
CODE_LABELS: Final = (INSTEAD_OF, WRITE)
#: It reproduces most failing cases, but not all, or a passing case refutes it.
CLOSEST: Final = "Closest known mistake"
CLOSEST_OPTION: Final = "Closest option"
#: Another mistake explains as much; or no passing case rules it out, and no values were compared.
POSSIBLE_CAUSES: Final = "Possible causes"
NOTHING_KNOWN: Final = "Cause unknown"
#: The place of a mistake that nothing known explains, what is right, and a call that shows it.
PLACE: Final = "Place"
HOLDS: Final = "Right by itself"
SMALLEST: Final = "Smallest wrong call"
#: A component that fails in a way that its failing parts do not explain.
FIX_TOO: Final = "Fix too"
#: The command that shows what only several calls show.
REPEAT: Final = "Repeat"
#: What explains the parts of these components explains their own failures.
BECAUSE: Final = "These also fail, perhaps only because of it"
#: Nobody can tell whether the failing parts explain these components.
AGAIN: Final = "These also fail; check them again after the fix"
#: What to change in the adapter, and not in the implementation.
NO_VARIANT: Final = "If it has no such variant"
PRINTED: Final = "If it follows {}"
#: The documents that print the mistake which is named above it.
AS_PRINTED: Final = "As printed in"
IS_HELPER: Final = "If it is only a helper"
COUNTS_AXES: Final = "If it counts a mask's axes"
NO_DTYPE: Final = "If it has no such dtype"
DECLARE_ALL: Final = "For all of these"
#: What is right on the CPU and would fail on a GPU.
RIGHT_HERE: Final = "Right here, would fail on a GPU"
ADAPTER_LABELS: Final = (IS_HELPER, NO_VARIANT, COUNTS_AXES, NO_DTYPE, DECLARE_ALL)
#: What is not wrapped, so that it can be copied.
COPIED: Final = frozenset({REPEAT, *CODE_LABELS})
#: The number of names that are listed; the others are counted.
FEW: Final = 4
#: The most characters of a check's message in a sentence: all of it stands with its check.
_LONGEST: Final = 400


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of the diagnosis; an `inner` one belongs to the component of the finding before it.

    `mistakes` are the ids of the known mistakes that it names.
    """

    label: str
    text: str
    inner: bool = True
    mistakes: tuple[str, ...] = ()

    @property
    def is_code(self) -> bool:
        """Return True if its text is a line of code."""
        return self.label in CODE_LABELS


def list_few(names: Iterable[str]) -> str:
    """List the first names, and count the others."""
    listed = list(names)
    more = len(listed) - FEW
    return ", ".join(listed[:FEW]) + (f" and {more} more" if more > 0 else "")


def quote_check(message: str) -> str:
    """Return the message of a check as one line, clipped."""
    return clip_text(" ".join(message.split()), _LONGEST)
