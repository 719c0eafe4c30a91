"""What the suite costs: start-up, the golden suite, and the harness's share of one case.

Run with `make bench`. Times are wall-clock on this machine, medians of several runs, one torch thread.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from goldformer.adapters import find_adapter
from goldformer.conformance.engine import Bench, check_case, plan
from goldformer.spec import load_spec

RUNS = 5


def median_of(run: Callable[[], float]) -> float:
    """The median of RUNS timings in seconds."""
    return statistics.median(run() for _ in range(RUNS))


def command(*arguments: str) -> float:
    """The wall-clock time of one process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def golden_suite(bench: Bench) -> tuple[float, float, list[float]]:
    """Wall-clock and own time of all golden cases, and the harness's share of each."""
    total = own = 0.0
    shares = []
    for case in plan(bench.spec):
        start = time.perf_counter()
        verdict = check_case(case, bench)
        took = time.perf_counter() - start
        total, own = total + took, own + verdict.seconds
        shares.append(took - verdict.seconds)
    return total, own, shares


def main() -> None:
    """Print the table."""
    script = str(Path(sys.executable).with_name("goldformer"))
    print(f"goldformer --help                       {median_of(lambda: command(script, '--help')):8.3f} s")
    start = time.perf_counter()
    spec = load_spec()
    print(f"loading and checking the spec           {time.perf_counter() - start:8.3f} s")
    for name in ("reference", "textbook"):
        adapter = find_adapter(name, spec)
        if adapter.arrays == "torch":
            import torch

            torch.set_num_threads(1)
        both = 0.0
        for dtype in ("float64", "float32"):
            bench = Bench(spec, adapter, dtype, "cpu")
            golden_suite(bench)  # draws the inputs, warms the library up
            runs = [golden_suite(bench) for _ in range(RUNS)]
            total, own, shares = sorted(runs, key=lambda run: run[0])[RUNS // 2]
            both += total
            print(
                f"{name:10} {dtype}: {len(shares)} cases  {total:6.3f} s, of which its own {own:6.3f} s; "
                f"harness a case: median {statistics.median(shares) * 1e3:.3f} ms, "
                f"mean {statistics.mean(shares) * 1e3:.3f} ms"
            )
        print(f"{name:10} golden suite, both dtypes       {both:8.3f} s")


if __name__ == "__main__":
    main()
