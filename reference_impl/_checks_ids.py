"""Checks of token ids, with messages like those of _checks."""

from typing import Any

import torch
from torch import Tensor

from goldformer.reference_impl._checks import Size, check_axes, check_int, check_is_tensor


def check_ids(name: str, ids: Any, axes: str = "batch seq", bound: dict[str, tuple[Size, str]] | None = None) -> None:
    """Refuse ids that are not int64 or int32, or whose shape contradicts the sizes in ``bound``."""
    check_is_tensor(name, ids)
    # uint8 is left out on purpose: torch indexes with it as with a mask.
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"{name} has dtype {ids.dtype} and must be torch.int64 or torch.int32: convert it with {name}.long()"
        )
    check_axes(name, ids, axes, {} if bound is None else bound)


def check_special_id(id_name: str, value: Any, does: str, name: str, ids: Tensor) -> None:
    """Refuse a special id that the dtype of ids cannot hold, such as pad_id; ``does`` is "pads these ids"."""
    check_int(id_name, value)
    # Compared with an int32 tensor, 2**32 + 1 is cut to 1: a pad_id out of range would hide a real token.
    held = torch.iinfo(ids.dtype)
    if not held.min <= value <= held.max:
        raise ValueError(
            f"{id_name}={value} must fit {name} of {ids.dtype}, {held.min} … {held.max}: "
            f"pass the id that {does}, or convert them with {name}.long()"
        )


def check_word_id(id_name: str, value: Any, does: str, vocab: int) -> None:
    """Refuse a special id outside a table of ``vocab`` rows, such as eos_id; ``does`` is "ends a sentence"."""
    check_int(id_name, value)
    if not 0 <= value < vocab:
        raise IndexError(f"{id_name}={value} must lie in 0 … {vocab - 1}, the rows of table: pass the id that {does}")


def can_read(tensor: Tensor) -> bool:
    """Return True if the tensor has values that can be read.

    While torch.compile traces it has none, and a branch on them would break the graph; on the meta device it never
    has. On CUDA reading costs a synchronisation and is done all the same: there an unchecked bad id kills the context
    of the whole process.
    """
    return not (torch.compiler.is_compiling() or tensor.is_meta)


def check_ids_below(name: str, ids: Tensor, vocab: int, what: str, read: Tensor | None = None) -> None:
    """Refuse an id outside a vocabulary of ``vocab`` words; with ``read``, only where that is True.

    ``what`` ends the message: it names the words and, after a colon, the next step.
    """
    if not can_read(ids):
        return
    outside = (ids < 0) | (ids >= vocab)
    if read is not None:
        outside = outside & read
    if outside.any():
        position = outside.nonzero()[0].tolist()
        raise IndexError(f"{name}{position}={ids[tuple(position)].item()} must lie in 0 … {vocab - 1}, {what}")


def check_ids_in_table(name: str, ids: Tensor, vocab: int) -> None:
    """Refuse an id outside a table of ``vocab`` rows."""
    fix = "use the vocabulary that the table was made for, or a longer table"
    check_ids_below(name, ids, vocab, f"the rows of table: {fix}")
