"""Read PyTorch's messages about tensors on two devices: which operand is on the CPU, and its role in the operation."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

#: The role of a tensor in the operation that mixes devices; "other" if the message does not say, or anything fits.
Role = Literal["mask", "ids", "weight", "constant", "part", "target", "result", "other"]

#: The messages of PyTorch about an operation on tensors of two devices. Any other error may be honest: code that looks
#: at its data cannot run on the meta device, and the pretend device does not have all that a real one has.
_MIXED: Final = re.compile(
    r"(same|expected) device|at least two devices|is on cpu|on (meta|pretend).*on cpu|\bcpu\b.*\b(meta|pretend)\b",
    re.IGNORECASE,
)

#: The operand and the operation in the words of the pretend device, and in those of CUDA.
_NAMED: Final = re.compile(
    r"\((?P<operand>\w+) of aten\.(?P<operation>\w+)\.\w+ is on cpu\)"
    r"|at least two devices, .*\bcpu\b.*for argument (?P<argument>\w+) in method wrapper_CUDA_+(?P<method>\w+)"
    # The words of newer versions, and those of masked_fill.
    r"|got (?P<tensor>\w+) is on cpu, different from .* in method wrapper_CUDA_+(?P<wrapped>\w+)"
    r"|expected self and (?P<other>\w+) to be on the same device, but got (?P=other) on cpu"
)

#: The message of goldformer about a result on the CPU.
_RESULT: Final = re.compile(r"(?P<output>\w+) is on cpu(,| though) the inputs are on")

#: The operation of the message that does not name it.
_MASKED_FILL: Final = "masked_fill"

#: The operations whose operands play the same role.
_ARITHMETIC: Final = frozenset({"add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "addcmul", "lerp"})

_WORDS: Final[dict[Role, str]] = {
    "mask": "a mask",
    "ids": "a tensor of ids or positions",
    "weight": "a weight or another factor of a product",
    "constant": "a constant or another term",
    "part": "one of several tensors that are joined",
    "target": "a tensor that results are written to",
    "result": "the result",
    "other": "a tensor",
}


class MixedDevices(NamedTuple):
    """An operation on tensors of two devices; `operand` and `operation` are "" if the message does not name them.

    `by_torch` is False for an error in the implementation's own words.
    """

    role: Role
    by_torch: bool
    operand: str = ""
    operation: str = ""

    @property
    def words(self) -> str:
        """The thing that is on the CPU, such as "a mask"."""
        return _WORDS[self.role]


def find_mixed_devices(message: str) -> MixedDevices | None:
    """Return what a message says of tensors on two devices, or None if it is about something else."""
    if result := _RESULT.match(message):
        return MixedDevices("result", by_torch=False, operand=result["output"])
    if not _MIXED.search(message):
        return None
    named = _NAMED.search(message)
    if named is None:
        return MixedDevices("other", by_torch="at least two devices" in message)
    operand = named["operand"] or named["argument"] or named["tensor"] or named["other"]
    operation = named["operation"] or named["method"] or named["wrapped"] or _MASKED_FILL
    return MixedDevices(_find_role(operand, operation), by_torch=True, operand=operand, operation=operation)


def _find_role(operand: str, operation: str) -> Role:
    """Return the role of an operand, by the names that PyTorch gives it and the operation."""
    is_self, plain = operand == "self", operation.strip("_")
    role: Role = "other"
    if is_self and (operation.endswith("_") or plain.startswith(("scatter", "index_put"))):
        role = "target"
    elif operand in ("mask", "condition", "attn_mask") or plain.startswith(("logical_", "bitwise_")):
        role = "mask"
    elif operand in ("index", "indices", "target"):
        role = "ids"
    elif operand in ("weight", "bias", "mat2", "vec2") or (is_self and plain in ("addmm", "baddbmm")):
        role = "weight"
    elif plain in ("cat", "stack"):
        role = "part"
    elif plain in _ARITHMETIC:
        role = "constant"
    return role
