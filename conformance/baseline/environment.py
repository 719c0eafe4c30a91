"""What numbers may depend on beside the implementation: versions, processor, threads, device and flags, in words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from threadpoolctl import threadpool_info

from goldformer.adapters import Adapter
from goldformer.conformance.baseline.model import Recording, Request
from goldformer.conformance.reports.comparison import environment, libraries_of

#: The features of a processor that decide how floating-point code is compiled or chosen, by how their names begin.
_FEATURES: Final = re.compile(r"amx|asimd|avx|bf16|f16c|fma|fphp|neon|sme(?!p)|sse4|sve")


def recorded(adapter: Adapter, request: Request) -> Recording:
    """The recording of a run of an adapter, in this process as it is set up now."""
    found = environment()
    words = {"Python": found["Python"], "NumPy": version("numpy")}
    words |= {name: number for name, number in libraries_of(adapter).items() if number and name != "numpy"}
    words |= {"BLAS": _blas(), "threads": str(request.threads), "system": found["system"]}
    words |= {"processor": found["processor"], "features": _features()}
    words |= {"torch": _torch, "jax": _jax}.get(adapter.arrays, _nothing)(request)
    given = {name: value for name, value in words.items() if value}
    return Recording(adapter.origin, adapter.name, adapter.version, adapter.arrays, dict(adapter.conventions), given)


def differences(old: Recording, new: Recording) -> Iterator[tuple[str, str, str]]:
    """What is not as it was: its name, the old words and the new; "none" where there were none."""
    mine = {"implementation": old.title, **_declared(old), **old.environment}
    theirs = {"implementation": new.title, **_declared(new), **new.environment}
    for name in {**mine, **theirs}:
        before, after = mine.get(name, "none"), theirs.get(name, "none")
        if before != after:
            yield name, before, after


def _declared(recording: Recording) -> dict[str, str]:
    return {f"convention {name}": option for name, option in recording.conventions.items()}


def _blas() -> str:
    """The libraries that multiply matrices, as they are loaded now; those that only run threads are left out."""
    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    words = (" ".join(str(info.get(k) or "") for k in ("internal_api", "version", "architecture")) for info in found)
    return ", ".join(sorted({" ".join(text.split()) for text in words}))


def _features() -> str:
    """What Linux says of the processor; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join(sorted(flag for flag in flags if _FEATURES.match(flag)))


def _torch(request: Request) -> dict[str, str]:
    import torch  # only an adapter that speaks torch gets here

    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    words = {
        "torch BLAS": blas[1] if blas else "",
        "torch CPU capability": torch.backends.cpu.get_cpu_capability(),
        "oneDNN": _on(torch.backends.mkldnn.enabled),
        "float32 products": torch.get_float32_matmul_precision(),
        "TF32": _on(torch.backends.cuda.matmul.allow_tf32),
        "deterministic algorithms": _on(torch.are_deterministic_algorithms_enabled()),
    }
    if any(device.startswith("cuda") for device in request.devices) and torch.cuda.is_available():
        names = {device: torch.cuda.get_device_name(device) for device in request.devices if device.startswith("cuda")}
        words |= {"GPU": ", ".join(dict.fromkeys(names.values())), "CUDA": str(torch.version.cuda)}
        cudnn: Any = torch.backends.cudnn
        words |= {"cuDNN": str(cudnn.version()), "driver": _driver()}
    return words


def _driver() -> str:
    """The version of NVIDIA's driver, as Linux tells it; empty elsewhere."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
    return next((word for word in line.split() if word[0].isdigit()), "")


def _jax(request: Request) -> dict[str, str]:
    import jax  # only an adapter that speaks jax gets here

    words = {"float32 products": str(jax.config.jax_default_matmul_precision)}
    with contextlib.suppress(PackageNotFoundError):
        words["jaxlib"] = version("jaxlib")
    kinds = {device.partition(":")[0] for device in request.devices} - {"cpu"}
    names: list[Any] = [jax.devices(kind)[0].device_kind for kind in sorted(kinds)]
    return words | ({"GPU": ", ".join(map(str, names))} if names else {})


def _nothing(_: Request) -> Mapping[str, str]:
    return {}


def _on(flag: Any) -> str:
    return "on" if flag else "off"
