"""Every implementation that has an adapter, in every dtype that it has: docs/implementations.md.

Run with `make implementations`, which takes about an hour, or with the names of those to run again. Each runs in
each dtype by itself, one after the other, as `goldformer compare NAME --dtype DTYPE` does; what they gave is kept in
build/implementations, and the page is made of all that is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from goldformer.adapters import BUILT_IN, DTYPES, OF_LIBRARIES
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import load_spec
from goldformer.spec.markdown import markdown_table

REPOSITORY: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = REPOSITORY / "build" / "implementations"
PAGE: Final = REPOSITORY / "docs" / "implementations.md"

#: The seconds that one implementation may take in one dtype; a slower one is left out, and named.
LIMIT: Final = {"float64": 900, "float32": 900, "float16": 900, "bfloat16": 900}

#: The components that are not run: without a compiler tinygrad takes minutes for thousands of elements.
LEFT_OUT: Final = {"tinygrad": ("dropout", "xavier_uniform", "scaled_dot_product_attention")}

_HEAD: Final = """# Implementations

What the suite finds of every implementation that has an adapter, on a CPU: how many of the checks that were judged
pass, golden cases and properties together, and the worst error ÷ tolerance. What fails is in **bold**, and
[findings.md](findings.md) says why. Skipped checks do not count: variants that a library has not, dtypes that a case
overflows, advice. A component without a line is not implemented, and a dtype without a number (–) not judged.

Each library is an extra of its own, as in `pip install './goldformer[jax]'`. `make implementations` makes this page
again, in an environment of its own, and `goldformer compare jax flax` compares any of them. This one: {environment}.
"""

Found = Mapping[str, Mapping[str, Any]]


def run(name: str, dtype: str, components: Sequence[str], device: str = "cpu", folder: Path = FOLDER) -> dict[str, Any]:
    """Compare an implementation in a dtype on a device; without results, `problem` says why."""
    target = folder / f"{name}-{dtype}.json"
    wanted = [c for c in components if c not in LEFT_OUT.get(name, ())]
    words = ["goldformer.conformance.cli", "compare", name, "--dtype", dtype, "--component", ",".join(wanted)]
    words += ["--device", device]
    command = [sys.executable, "-W", "ignore", "-m", *words, "--jobs", "1", "--json", str(target)]
    target.unlink(missing_ok=True)
    # A session of its own, because the command starts a process too, and both must end.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as comparing:
        try:
            comparing.wait(LIMIT[dtype])
            found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))["implementations"][0]
        except subprocess.TimeoutExpired:
            found = {"name": name, "version": "", "components": [], "seconds": LIMIT[dtype]}
            found["problem"] = f"left out, as it takes more than {LIMIT[dtype] // 60} minutes"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(comparing.pid, signal.SIGKILL)
    kept = {key: found[key] for key in ("name", "version", "components", "seconds", "problem")}
    # The page does not show them; they are for debugging.
    bad = (verdict for verdict in found.get("verdicts", ()) if verdict["status"] in ("failed", "errored"))
    kept["failures"] = {verdict["check"]: verdict["message"] for verdict in bad}
    target.write_text(json.dumps(kept), encoding="utf-8")
    return kept


def page(runs: Mapping[str, Found], components: Sequence[str]) -> str:
    """Render the page of some runs, by implementation and by dtype."""
    parts = [_HEAD.format(environment=describe_environment()), tabulate({f"[{n}](#{n})": f for n, f in runs.items()})]
    for name, found in runs.items():
        parts += _section(name, found, components)
    return "\n".join(parts)


def tabulate(runs: Mapping[str, Found]) -> str:
    """Render a table of some runs, with a line for each implementation."""
    rows = []
    for name, found in runs.items():
        rows.append([name, *_make_row({dtype: _add_up(found[dtype]["components"], dtype) for dtype in found})])
    return markdown_table(["implementation", *DTYPES, "worst"], rows)


def describe_environment() -> str:
    """Return the versions of Python and of the array libraries."""
    found = [f"Python {platform.python_version()}"]
    for package in ("numpy", "torch", "jax"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


def _section(name: str, found: Found, components: Sequence[str]) -> Iterator[str]:
    named = next((run["version"] for run in found.values() if run["version"]), "")
    yield f"## {name}\n"
    remarks = [f"Version {named}."] if named else []
    remarks += [f"{dtype}: {run['problem']}." for dtype, run in found.items() if run["problem"]]
    if missing := [dtype for dtype in DTYPES if dtype not in found]:
        remarks.append(f"Not run: {', '.join(missing)}.")
    remarks += [f"Left out, as they take minutes: {', '.join(LEFT_OUT[name])}."] if name in LEFT_OUT else []
    yield f"{' '.join(remarks)}\n"
    rows = []
    for component in components:
        cells = {
            dtype: tally
            for dtype, run in found.items()
            for cell in run["components"]
            if cell["component"] == component and _count_judged(tally := cell["dtypes"][dtype])
        }
        if cells:
            rows.append([f"`{component}`", *_make_row(cells)])
    if rows:
        yield markdown_table(["component", *DTYPES, "worst"], rows)


def _make_row(cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the checks that pass in each dtype, and the worst ratio of all."""
    drawn = [_format_tally(cells.get(dtype)) for dtype in DTYPES]
    ratios = [float(tally["worst_ratio"]) for tally in cells.values() if tally["worst_ratio"] is not None]
    return [*drawn, format_ratio(max(ratios)) if ratios else "–"]


def _format_tally(tally: Mapping[str, Any] | None) -> str:
    judged = _count_judged(tally) if tally else 0
    if not tally or not judged:
        return "–"
    text = f"{tally['passed']}/{judged}"
    return text if tally["passed"] == judged else f"**{text}**"


def _count_judged(tally: Mapping[str, Any]) -> int:
    return int(tally["passed"] + tally["failed"] + tally["errored"])


def _add_up(components: Sequence[Mapping[str, Any]], dtype: str) -> dict[str, Any]:
    """Add up all components."""
    tallies = [cell["dtypes"][dtype] for cell in components]
    ratios = [float(tally["worst_ratio"]) for tally in tallies if tally["worst_ratio"] is not None]
    counts = {kind: sum(tally[kind] for tally in tallies) for kind in ("passed", "failed", "errored")}
    return {**counts, "worst_ratio": max(ratios, default=None)}


def main() -> None:
    """Run the implementations, and write the page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    names, components = [*BUILT_IN, *OF_LIBRARIES], load_spec().components
    for name in sys.argv[1:] or names:
        for dtype in DTYPES:
            found = run(name, dtype, components)
            print(f"{name} {dtype}: {found['seconds']:.0f} s {found['problem']}", flush=True)
    write(names, components)


def write(names: Sequence[str], components: Sequence[str]) -> None:
    """Write the page of all stored runs; an implementation without one keeps its part of the page."""
    runs: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name in names:
        for dtype in DTYPES:
            file = FOLDER / f"{name}-{dtype}.json"
            if file.exists():
                runs[name][dtype] = json.loads(file.read_text(encoding="utf-8"))
    made = page(runs, components)
    without = [name for name, found in runs.items() if not found]
    PAGE.write_text(keep_parts(made, PAGE.read_text(encoding="utf-8"), without), encoding="utf-8")


def keep_parts(made: str, old: str, names: Sequence[str]) -> str:
    """Return a page with the lines and sections of some implementations as the old page has them."""
    for name in names:
        for pattern in (rf"^\| \[{name}\]\(#{name}\) \|.*\n", rf"^## {name}\n(?s:.*?)(?=^## |\Z)"):
            if kept := re.search(pattern, old, re.MULTILINE):
                made = re.sub(pattern, lambda _, text=kept[0]: text, made, count=1, flags=re.MULTILINE)  # type: ignore[misc]
    return made


if __name__ == "__main__":
    main()
