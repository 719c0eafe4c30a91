"""Recognize an error after which a process has no device any more, by its words and by one small operation.

A failed assertion or a bad address in a kernel ends the context of the process on the device: from then on every
operation there raises, whoever asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from goldformer.adapters.arrays import ArrayLibrary, Wire
from goldformer.adapters.untrusted_text import describe_exception, join_lines, quote_message

#: The errors of CUDA and HIP that no call after them in the same process survives. Others, such as a launch with too
#: many threads, leave the device as it was.
_FATAL: Final = re.compile(
    r"device-side assert|illegal memory access|misaligned address|illegal instruction|unspecified launch failure"
    r"|invalid program counter|hardware stack error|launch timed out|uncorrectable ECC"
    r"|(cudaError|hipError)_?(Assert|IllegalAddress|MisalignedAddress|LaunchFailure|IllegalInstruction)"
    r"|(CUDA|HIP)_ERROR_(ASSERT|ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|LAUNCH_FAILED|ILLEGAL_INSTRUCTION)"
)

#: The words of an operation that found no memory: the device is still there.
_FULL: Final = re.compile("out of memory|OutOfMemory|RESOURCE_EXHAUSTED")

#: The advice that PyTorch adds to each error of CUDA.
_ADVICE: Final = re.compile(
    r"\s*(Search for `\w+' in|CUDA kernel errors might be|HIP kernel errors might be).*?"
    r"(device-side assertions\.|`TORCH_USE_\w+_DSA`[^.]*\.)\s*",
    re.DOTALL,
)


def explain_device_loss(error: BaseException, library: ArrayLibrary, device: str) -> str:
    """Return the error in one line if this process has lost its device by now, or ""."""
    # An implementation in a process of its own has a device of its own.
    if library.name == Wire.name:
        return ""
    texts = [describe_exception(one) for one in _list_causes(error)]
    if not (any(map(_FATAL.search, texts)) or _has_lost(library, device)):
        return ""
    # The message of a call says which exception it was, and where it was raised.
    words = f"raised {texts[0]}" if error.__cause__ is None else quote_message(error)
    return join_lines(_ADVICE.sub(" ", words)).strip()


def _has_lost(library: ArrayLibrary, device: str) -> bool:
    """Return True if the smallest operation on a device fails, for any other reason than that it is full."""
    if device == "cpu":
        return False
    ones = np.ones(1)
    try:
        return not np.array_equal(library.numpy(library.make(ones, "float32", device)), ones)
    except Exception as error:
        return not _FULL.search(describe_exception(error))


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that it was raised from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__
