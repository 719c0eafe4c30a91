"""Every implementation that has an adapter, on a GPU, in every dtype that it has: the last part of docs/gpu.md.

Run with `make gpu`, on a machine with a GPU; `--device cuda:1` chooses another than the first. Without a GPU the page
stays as it is. `--dry-run` does the same on the pretend device for a few components, and prints the part.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.implementations import REPOSITORY, describe_environment, run, tabulate
from goldformer.adapters import BUILT_IN, DTYPES, OF_LIBRARIES
from goldformer.adapters.arrays import LIBRARIES
from goldformer.spec import load_spec

PAGE: Final = REPOSITORY / "docs" / "gpu.md"

#: The line of the page after which all is written by this module.
_MEASURED: Final = "## Measured\n"

#: The components of a dry run, which takes seconds.
_SAMPLE: Final = {"names": ("reference",), "dtypes": ("float32",), "components": ("softmax", "layer_norm")}


def find_gpu() -> str | None:
    """Return the first kind of GPU that PyTorch finds here, or None."""
    return next((kind for kind in ("cuda", "xpu", "mps") if LIBRARIES["torch"].unavailable(kind) is None), None)


def measure(
    device: str, folder: Path, names: Collection[str], dtypes: Collection[str], components: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the runs on a device in which something was judged, by implementation and by dtype."""
    runs: dict[str, dict[str, Any]] = {}
    for name in names:
        for dtype in dtypes:
            found = run(name, dtype, components, device, folder)
            print(f"{name} {dtype}: {found['seconds']:.0f} s {found['problem']}", file=sys.stderr, flush=True)
            if found["components"]:
                runs.setdefault(name, {})[dtype] = found
    return runs


def describe(device: str, hardware: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Render the measured part of the page."""
    head = f"On `{device}`, {hardware}, with {describe_environment()}: checks that pass, of those that were judged, and"
    return f"{head}\nthe worst error ÷ tolerance. What fails is in **bold**.\n\n{tabulate(runs)}"


def name_hardware(device: str) -> str:
    """Return the name of a device, as PyTorch has it."""
    import torch

    kind = device.partition(":")[0]
    return str(getattr(torch, kind).get_device_name(device)) if kind in ("cuda", "xpu") else f"a device of kind {kind}"


def write(measured: str) -> None:
    """Replace the measured part of the page."""
    kept = PAGE.read_text(encoding="utf-8").partition(_MEASURED)[0]
    PAGE.write_text(f"{kept}{_MEASURED}\n{measured}", encoding="utf-8")


def main() -> None:
    """Measure, and write the page; a sentence and exit status 1 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="the GPU, such as cuda:1 (default: the first that PyTorch finds)")
    parser.add_argument("--dry-run", action="store_true", help="a sample on the pretend device; the page stays")
    arguments = parser.parse_args()
    device = "pretend" if arguments.dry_run else arguments.device or find_gpu()
    if device is None:
        sys.exit("PyTorch finds no GPU here, so nothing was measured: docs/gpu.md stays as it is.")
    if why := LIBRARIES["torch"].unavailable(device):
        sys.exit(f"{why}: docs/gpu.md stays as it is.")
    whole = {"names": (*BUILT_IN, *OF_LIBRARIES), "dtypes": DTYPES, "components": load_spec().components}
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(device, Path(folder), **(_SAMPLE if arguments.dry_run else whole))
    measured = describe(device, name_hardware(device), runs)
    if arguments.dry_run:
        print(measured)
    else:
        write(measured)


if __name__ == "__main__":
    main()
