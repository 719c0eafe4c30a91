"""The command line that repeats a check."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from goldformer.adapters.process import TIMEOUT
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.implementation import Implementation
from goldformer.spec import Case


def write_command(implementation: Implementation, policy: Policy, *check: str) -> str:
    """Return the command line that repeats one check."""
    adapter = implementation.adapter
    switches = {"--tf32": policy.tf32, "--bitwise": policy.bitwise, "--strict": policy.strict}
    given = tuple(name for name, is_on in switches.items() if is_on)
    device, declared = implementation.device, adapter.declared
    options = _join_options(implementation.dtype, device, adapter.timeout, implementation.wrapper, (*declared, *given))
    return f"goldformer check {shlex.quote(adapter.origin)} {shlex.join(check)} {options}"


@lru_cache
def _join_options(dtype: str, device: str, timeout: float | None, wrapper: str, others: tuple[str, ...]) -> str:
    """Join the options of a command line that repeats a check; cached, because every verdict has one."""
    words = ["--dtype", dtype, *(["--device", device] if device != "cpu" else [])]
    words += ["--timeout", f"{timeout:.15g}"] if timeout not in (None, TIMEOUT) else []
    words += ["--wrap", wrapper] if wrapper else []
    return shlex.join([*words, *others])


def repeat_cases(implementation: Implementation, policy: Policy, cases: Sequence[Case]) -> str:
    """Return the command line that repeats some cases, with their files if they are not part of the spec."""
    root = implementation.spec.root
    files = dict.fromkeys(case.place.file for case in cases if not _is_within(case.place.file, root))
    own = [word for file in files for word in ("--cases", str(file))]
    return write_command(implementation, policy, *own, "--case", ",".join(case.id for case in cases))


@lru_cache(maxsize=1 << 10)
def _is_within(file: Path, folder: Path) -> bool:
    return file.is_relative_to(folder)
