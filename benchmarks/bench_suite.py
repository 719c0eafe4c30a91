"""The cost of the suite: start-up, a case, all cases, in process and out of it; deriving; the report."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goldformer.adapters import Adapter
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, check_case, judge_case
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.reports.comparison_page import page
from goldformer.conformance.reports.record import RunRecord, record_run
from goldformer.conformance.selection import Selection, checks
from goldformer.spec import Spec, load_spec

GOLDFORMER = str(Path(sys.executable).with_name("goldformer"))
Benchmark = Any
BenchOf = Callable[..., Bench]


#: An adapter of one right function, as a newcomer writes it.
SOFTMAX = """
import numpy as np
ARRAYS = "numpy"
def softmax(scores):
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)
"""

#: The commonest mistake: the scores are not divided by √d_k.
NO_SCALE = """
import torch
ARRAYS = "torch"
def scaled_dot_product_attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights
"""


def user_seconds() -> float:
    """Return the user CPU time of all processes that were started and have ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def command(*words: str) -> None:
    """Run a process to its end; exit status 1 is a verdict."""
    assert subprocess.run(words, check=False, capture_output=True).returncode in (0, 1)


def imports(library: str) -> float:
    """Return the user CPU time of importing an array library, the smallest of three."""
    seconds = []
    for _ in range(3):
        start = user_seconds()
        command(sys.executable, "-c", f"import {library}")
        seconds.append(user_seconds() - start)
    return min(seconds)


def small(bench: Bench) -> list[Any]:
    """Return the golden cases without the full-size model, which measures PyTorch only."""
    return [case for case in plan(bench.spec) if not case.full_size]


def golden(bench: Bench) -> float:
    """Run all of them; return the seconds of the implementation itself."""
    return sum(check_case(case, bench).seconds for case in small(bench))


@pytest.mark.benchmark(timer=user_seconds)
def test_help(benchmark: Benchmark) -> None:
    benchmark.extra_info.update(what="`goldformer --help`", goal=0.1)
    benchmark.pedantic(command, (GOLDFORMER, "--help"), rounds=7, warmup_rounds=1)


#: The subject, the array library of the adapter, the options, and the goal in seconds of user CPU time.
CHECKS = {
    "`goldformer check soft.py --component softmax`": (SOFTMAX, "numpy", ("--component", "softmax"), 0.6),
    "the same, one case": (SOFTMAX, "numpy", ("--case", "sm-several-rows"), 0.4),
    "`goldformer check` of attention without its scale, both dtypes, with the diagnosis": (NO_SCALE, "torch", (), 2.5),
}


@pytest.mark.benchmark(timer=user_seconds)
@pytest.mark.parametrize("what", CHECKS)
def test_check(what: str, benchmark: Benchmark, tmp_path: Path) -> None:
    source, library, options, goal = CHECKS[what]
    adapter = tmp_path / "mine.py"
    adapter.write_text(source, encoding="utf-8")
    note = f"the import of {library} is taken off"
    benchmark.extra_info.update(what=what, goal=goal, less=imports(library), note=note)
    benchmark.pedantic(command, (GOLDFORMER, "check", str(adapter), *options), rounds=3, warmup_rounds=1)


@pytest.mark.benchmark(timer=time.process_time)
def test_load(benchmark: Benchmark) -> None:
    benchmark.extra_info["what"] = "loading and checking the whole spec"
    benchmark.pedantic(lambda: load_spec.__wrapped__(whole=True), rounds=5)


# Wall time, as a judged case reports of its implementation: the difference of two clocks would mean nothing.
@pytest.mark.parametrize("name", ["reference", "textbook"])
def test_golden(name: str, benchmark: Benchmark, bench_of: BenchOf) -> None:
    bench = bench_of(name)
    cases, own = small(bench), golden(bench)
    took = benchmark.pedantic(golden, (bench,), rounds=5)
    benchmark.extra_info["what"] = f"all golden cases, `{name}`, float32"
    share = (benchmark.stats.stats.median - took) / len(cases) * 1e3
    benchmark.extra_info["note"] = (
        f"{len(cases)} cases; the harness takes {share:.2f} ms of each (goal 0.2 ms), its own {own:.2f} s in all"
    )


@pytest.mark.parametrize("name", ["reference", "textbook"])
def test_served(name: str, benchmark: Benchmark, bench_of: BenchOf) -> None:
    bench = bench_of(f"cmd: {GOLDFORMER} serve {name}")
    golden(bench)
    benchmark.extra_info.update(what=f"the same over the protocol, `{name}`", against=f"test_golden[{name}]")
    benchmark.pedantic(golden, (bench,), rounds=5)
    bench.adapter.close()


@pytest.mark.parametrize("name", ["textbook", f"cmd: {GOLDFORMER} serve textbook"], ids=["here", "served"])
def test_call(name: str, benchmark: Benchmark, bench_of: BenchOf, spec: Spec) -> None:
    bench = bench_of(name)
    case = spec.cases["sdpa-walkthrough-3x2"]
    check_case(case, bench)
    served = name != "textbook"
    benchmark.extra_info["what"] = "one small case" + (" over the protocol" if served else "")
    if served:
        benchmark.extra_info["against"] = "test_call[here]"
    benchmark.pedantic(check_case, (case, bench), rounds=200)
    bench.adapter.close()


def test_whole_suite(benchmark: Benchmark) -> None:
    benchmark.extra_info.update(
        what="`pytest conformance --adapter reference`, both dtypes, with properties, wall", goal=15
    )
    suite = str(Path(__file__).resolve().parent.parent / "conformance")
    words = (sys.executable, "-m", "pytest", suite, "--adapter", "reference", "-q", "-p", "no:cacheprovider")
    benchmark.pedantic(command, words, rounds=1)


@pytest.mark.benchmark(timer=time.process_time)
def test_derive(benchmark: Benchmark, spec: Spec) -> None:
    from goldformer.spec.oracle.run import derive_golden

    cases = [c for c in spec.cases_of("scaled_dot_product_attention") if c.golden is not None and not c.cotangent]
    benchmark.extra_info.update(what="deriving a case of attention: balls and draws", per=len(cases))
    benchmark.pedantic(lambda: [derive_golden(case, spec) for case in cases], rounds=3)


def failing(bench: Bench) -> RunRecord:
    """Run the suite on attention without the scale, in float32."""
    selection = Selection(("float32",), ("scaled_dot_product_attention", "multi_head_attention"))
    run = DiagnosedRun(tuple(check().verdict for check in checks(bench, selection)))
    return record_run(bench, run, 0.0, with_pictures=True)


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("named", [False, True], ids=["without", "with"])
def test_diagnosis(named: bool, benchmark: Benchmark, spec: Spec) -> None:  # noqa: FBT001 - parametrized
    made = implementations()["scale-missing"].make()
    functions = {name: getattr(made, name) for name in spec.contracts if hasattr(made, name)}
    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="numpy", **functions), "mine", spec)
    cases = [*spec.cases_of("scaled_dot_product_attention"), *spec.cases_of("multi_head_attention")]

    def run(named: bool) -> None:  # noqa: FBT001 - parametrized
        bench = Bench(spec, adapter, "float32", "cpu")
        judgements = [judge_case(case, bench) for case in cases]
        if named:
            Diagnosis(spec).explain_all(judgements)

    what = f"attention without its scale, {len(cases)} cases"
    benchmark.extra_info["what"] = f"{what}, with the diagnosis" if named else what
    if named:
        benchmark.extra_info["against"] = "test_diagnosis[without]"
    benchmark.pedantic(run, (named,), rounds=3, warmup_rounds=1)


@pytest.mark.benchmark(timer=time.process_time)
def test_report(benchmark: Benchmark, bench_of: BenchOf, spec: Spec) -> None:
    found = failing(bench_of("textbook"))
    benchmark.extra_info["what"] = "the HTML report of a run"
    benchmark.pedantic(page, (Comparison(ComparisonRequest(("float32",)), (found,)), spec), rounds=5)
