"""Memory that code allocates without values, as by torch.empty, filled with one number: what is never written shows.

Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from goldformer.adapters.dtypes import choose_filler

#: The operations that allocate memory and write nothing to it.
_ALLOCATIONS: Final = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)


class FilledMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives no types
    """Fill what the allocations of a `with` block return. What an operation allocates inside is its own."""

    def __init__(self, number: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives no types; this method does
        self._number = number

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: PyTorch would import its compiler only to keep it from compiling this class."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operation, and fill its result if it is an allocation."""
        del types
        returned = func(*args, **(kwargs or {}))
        if func.overloadpacket in _ALLOCATIONS and not returned.is_complex():
            returned.fill_(choose_filler("f" if returned.is_floating_point() else "i", self._number))
        return returned
