"""The environment that numbers may depend on: versions, processor, threads, device and flags, in words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from threadpoolctl import threadpool_info

from goldformer.adapters import Adapter
from goldformer.conformance.baseline.model import BaselineRequest, Recording
from goldformer.conformance.reports.comparison import describe_system
from goldformer.conformance.reports.record import list_libraries

#: The features of a processor that decide how floating-point code is compiled or chosen, by the start of their names.
_FEATURES: Final = re.compile(r"amx|asimd|avx|bf16|f16c|fma|fphp|neon|sme(?!p)|sse4|sve")


def describe_run(adapter: Adapter, request: BaselineRequest) -> Recording:
    """Return the recording of a run of an adapter in this process with its present settings."""
    system = describe_system()
    words = {"Python": system["Python"], "NumPy": version("numpy")}
    words |= {name: number for name, number in list_libraries(adapter).items() if number and name != "numpy"}
    words |= {"BLAS": _list_blas(), "threads": str(request.threads), "system": system["system"]}
    words |= {"processor": system["processor"], "features": _list_features()}
    if adapter.arrays == "torch":
        words |= _describe_torch(request)
    elif adapter.arrays == "jax":
        words |= _describe_jax(request)
    return Recording(
        given=adapter.origin, name=adapter.name, version=adapter.version, arrays=adapter.arrays,
        conventions=dict(adapter.conventions), environment={name: value for name, value in words.items() if value},
    )  # fmt: skip


def list_differences(old: Recording, new: Recording) -> Iterator[tuple[str, str, str]]:
    """Yield what differs: its name, the old words and the new, which are "none" if something is missing."""
    mine = {"implementation": old.title, **_list_declared(old), **old.environment}
    theirs = {"implementation": new.title, **_list_declared(new), **new.environment}
    for name in {**mine, **theirs}:
        before, after = mine.get(name, "none"), theirs.get(name, "none")
        if before != after:
            yield name, before, after


def _list_declared(recording: Recording) -> dict[str, str]:
    return {f"convention {name}": option for name, option in recording.conventions.items()}


def _list_blas() -> str:
    """Return the loaded libraries that multiply matrices."""
    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    words = (" ".join(str(info.get(k) or "") for k in ("internal_api", "version", "architecture")) for info in found)
    return ", ".join(sorted({" ".join(text.split()) for text in words}))


def _list_features() -> str:
    """Return the features of the processor that Linux lists; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join(sorted(flag for flag in flags if _FEATURES.match(flag)))


def _describe_torch(request: BaselineRequest) -> dict[str, str]:
    import torch  # only an adapter that speaks torch gets here

    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    words = {
        "torch BLAS": blas[1] if blas else "",
        "torch CPU capability": torch.backends.cpu.get_cpu_capability(),
        "oneDNN": _switch(torch.backends.mkldnn.enabled),
        "float32 products": torch.get_float32_matmul_precision(),
        "TF32": _switch(torch.backends.cuda.matmul.allow_tf32),
        "deterministic algorithms": _switch(torch.are_deterministic_algorithms_enabled()),
    }
    if any(device.startswith("cuda") for device in request.devices) and torch.cuda.is_available():
        names = {device: torch.cuda.get_device_name(device) for device in request.devices if device.startswith("cuda")}
        words |= {"GPU": ", ".join(dict.fromkeys(names.values())), "CUDA": str(torch.version.cuda)}
        cudnn: Any = torch.backends.cudnn
        words |= {"cuDNN": str(cudnn.version()), "driver": _find_driver()}
    return words


def _find_driver() -> str:
    """Return the version of NVIDIA's driver that Linux reports; empty on other systems."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
    return next((word for word in line.split() if word[0].isdigit()), "")


def _describe_jax(request: BaselineRequest) -> dict[str, str]:
    import jax  # only an adapter that speaks jax gets here

    words = {"float32 products": str(jax.config.jax_default_matmul_precision)}
    with contextlib.suppress(PackageNotFoundError):
        words["jaxlib"] = version("jaxlib")
    kinds = {device.partition(":")[0] for device in request.devices} - {"cpu"}
    names: list[Any] = [jax.devices(kind)[0].device_kind for kind in sorted(kinds)]
    return words | ({"GPU": ", ".join(map(str, names))} if names else {})


def _switch(flag: Any) -> str:
    return "on" if flag else "off"
