"""The pytest plugin: options, one test per case and dtype, a summary by component.

Loaded by every pytest run of an environment that has goldformer, so importing it is cheap (neither
torch nor hypothesis nor the spec) and it prints nothing unless tests of the suite are collected.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

if TYPE_CHECKING:
    from goldformer.adapters.executed import Executed
    from goldformer.conformance.diagnosis.diagnosed import Explained
    from goldformer.conformance.diagnosis.explain import Diagnosis
    from goldformer.conformance.judging.cases import Bench, Judgement
    from goldformer.conformance.judging.verdict import CheckKey, Verdict
    from goldformer.conformance.reports.record import RunRecord

KEY: Final = "goldformer"
#: The word for every dtype that the adapter has.
ALL: Final = "all"
_SUITE: Final = Path(__file__).resolve().parent
#: The reason why a test judges no code whose call is a guess.
_ONLY_NAMES: Final = "no call gives golden values, and only its names say how it is called: run `goldformer check`"
_BENCH: Final = pytest.StashKey["Bench"]()
_DIAGNOSIS: Final = pytest.StashKey["Diagnosis"]()
#: The judgements of this process.
_JUDGED: Final = pytest.StashKey[dict["CheckKey", "Judgement"]]()
#: What the golden cases ran, here and in the workers of pytest-xdist.
_EXECUTED: Final = pytest.StashKey["Executed"]()
_EXPLAINED: Final = pytest.StashKey["Explained"]()

Value = TypeVar("Value")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options. --strict is pytest's own; for the suite it also fails what is not implemented."""
    group = parser.getgroup("goldformer", "conformance of a Transformer implementation (goldformer)")
    group.addoption(
        "--adapter",
        default="reference",
        help='the implementation: a built-in name, a file, a dotted module, or "cmd: …"',
    )
    group.addoption("--component", action="append", default=[], help="only this component (repeatable, or a,b)")
    group.addoption(
        "--dtype",
        action="append",
        default=[],
        help="float64, float32, float16, bfloat16, or all that the adapter has; default float32, if the adapter has it",
    )
    group.addoption("--device", default="cpu", help="cpu, cuda, xpu, mps, one with its number as cuda:1, or pretend")
    group.addoption(
        "--tf32", action="store_true", help="allow TF32 in matrix products of float32, and judge by its rounding"
    )
    group.addoption(
        # Not --timeout, which pytest-timeout has.
        "--call-timeout",
        type=float,
        default=60.0,
        help="seconds for each call of an implementation that is a process; default 60",
    )
    group.addoption("--family", help="the model whose options the implementation has, such as llama-3")
    group.addoption("--threads", type=int, default=1, help="threads on the CPU, of PyTorch and BLAS; default 1")


def pytest_configure(config: pytest.Config) -> None:
    """Register the summary and refuse bad options, in the controller of pytest-xdist only."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config), "goldformer-summary")
        if _asks_for_suite(config):
            _load_bench(config)


def _asks_for_suite(config: pytest.Config) -> bool:
    """Return True if this run asks for the suite: by its package, by its folder or by --adapter."""
    if any(argument.partition("=")[0] == "--adapter" for argument in map(str, config.invocation_params.args)):
        return True
    for target in (argument.partition("::")[0] for argument in config.args):
        path = Path(config.invocation_params.dir, target).resolve()
        if target.startswith("goldformer.conformance") or path == _SUITE or _SUITE in path.parents:
            return True
    return False


def _is_of_the_suite(file: str | None) -> bool:
    """Return True for a module that lies in the suite's own folder."""
    return file is not None and Path(file).resolve().parent == _SUITE


def _split_words(given: list[str]) -> list[str]:
    return list(dict.fromkeys(word for text in given for word in text.split(",") if word))


def _list_chosen(config: pytest.Config) -> tuple[str, ...]:
    """Return the components that --component names; empty means every component."""
    return tuple(_split_words(config.getoption("--component")))


def _load_bench(config: pytest.Config) -> Bench:
    """Load the adapter once; a usage error ends the run with pytest's exit code 4."""
    if _BENCH not in config.stash:
        from goldformer.adapters import DTYPES, AdapterError
        from goldformer.adapters.executed import Recorder
        from goldformer.conformance.diagnosis.explain import Diagnosis
        from goldformer.conformance.guesses import leave_out
        from goldformer.conformance.judging.cases import Bench
        from goldformer.conformance.judging.collector import sparing_collector
        from goldformer.conformance.judging.decision import Policy
        from goldformer.conformance.loading import Reading, load_implementation
        from goldformer.conformance.selection import Numerics, Selection, add_declared_cases, list_present
        from goldformer.spec import SpecError, load_spec

        timeout = config.getoption("--call-timeout")
        if not timeout > 0:
            raise pytest.UsageError(f"--call-timeout {timeout:g}: a number of seconds above 0")
        _enter_until_end(config, sparing_collector())
        try:
            spec = load_spec()
            chosen = _list_chosen(config)
            _check_known(list(chosen), spec.components, "--component")
            if config.getoption("--dtype") != [ALL]:
                _check_known(_split_words(config.getoption("--dtype")), DTYPES, "--dtype")
            adapter = load_implementation(config.getoption("--adapter"), spec, Reading(timeout=timeout))
            # Each test is judged by itself, and only all of them show that mistakes explain what fails.
            adapter = leave_out(adapter, dict.fromkeys(adapter.guesses, _ONLY_NAMES)) if adapter.guesses else adapter
            if family := config.getoption("--family"):
                adapter = adapter.declare_family(family, spec)
            policy = Policy(strict="--strict" in _read_arguments(config), tf32=config.getoption("--tf32"))
            bench = Bench(spec, adapter, adapter.default_dtype, config.getoption("--device"), policy)
            bench = add_declared_cases(bench, Selection((), tuple(chosen)))
            for name in list_present(bench, Selection((), chosen)):
                spec.cases_of(name)  # reads them, since every one becomes a test
        except (AdapterError, SpecError) as error:
            raise pytest.UsageError(f"goldformer: {error}") from error
        Numerics(policy.tf32, config.getoption("--threads")).apply(adapter.arrays)
        recorder = Recorder()
        config.stash[_BENCH] = replace(bench, recorder=recorder)
        config.stash[_DIAGNOSIS] = Diagnosis(bench.spec)
        config.stash[_JUDGED] = {}
        config.stash[_EXECUTED] = recorder.executed
        _enter_until_end(config, recorder.monitor())
        config.add_cleanup(adapter.close)
    return config.stash[_BENCH]


def _enter_until_end(config: pytest.Config, context: AbstractContextManager[Value]) -> Value:
    stack = ExitStack()
    value = stack.enter_context(context)
    config.add_cleanup(stack.close)
    return value


def _read_arguments(config: pytest.Config) -> list[str]:
    """Return the command line; a worker of pytest-xdist has that of its controller."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    return list(worker.get(KEY, config.invocation_params.args))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the command line to a worker of pytest-xdist."""
    node.workerinput[KEY] = [str(a) for a in node.config.invocation_params.args]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the controller of pytest-xdist what ran here."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None and _EXECUTED in session.config.stash:
        output[KEY] = pickle.dumps(session.config.stash[_EXECUTED])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what ran in a worker of pytest-xdist, which is this Python with the same code."""
    if KEY in (sent := getattr(node, "workeroutput", {})):
        _load_bench(node.config)
        from goldformer.conformance.reports.never_ran import add_executed

        add_executed(node.config.stash[_EXECUTED], pickle.loads(sent[KEY]))


def _check_known(given: list[str], known: tuple[str, ...], option: str) -> None:
    for word in given:
        if word not in known:
            raise pytest.UsageError(f"{option} {word}: known are {', '.join(known)}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests that ask for a `bench` by dtype, and by case or by component and property."""
    if "bench" not in metafunc.fixturenames or not _is_of_the_suite(metafunc.module.__file__):
        return
    config = metafunc.config
    from goldformer.conformance.selection import Selection, list_present

    bench = _load_bench(config)
    dtypes = _split_words(config.getoption("--dtype")) or [bench.adapter.default_dtype]
    dtypes = list(bench.adapter.dtypes) if dtypes == [ALL] else dtypes
    metafunc.parametrize("bench", [replace(bench, dtype=d) for d in dtypes], ids=dtypes)
    # A component that the adapter does not have is one line of the summary, and its files are not read.
    present = list_present(bench, Selection(tuple(dtypes), _list_chosen(config)))
    if "golden_case" in metafunc.fixturenames:
        from goldformer.conformance.judging.applicability import plan

        cases = plan(bench.spec, present) if present else []
        metafunc.parametrize("golden_case", cases, ids=[case.id for case in cases])
    elif "prop" in metafunc.fixturenames:
        from goldformer.conformance.properties.registry import components_of

        pairs = [(c, p) for p in bench.spec.properties.values() for c in components_of(p, bench.spec) if c in present]
        metafunc.parametrize(("component", "prop"), pairs, ids=[f"{c}-{p.id}" for c, p in pairs])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the skipped item that pytest makes of a test without parameters: the adapter has nothing asked for."""
    if left_out := [item for item in items if _has_nothing_to_check(item)]:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _has_nothing_to_check(item: pytest.Item) -> bool:
    """Return True for a test of the suite that was parametrised with no case and no property."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return "bench" in params and not hasattr(params.get("golden_case", params.get("prop")), "id")


@pytest.fixture
def settle(request: pytest.FixtureRequest) -> Callable[[Judgement], None]:
    """Explain a judgement, turn it into pytest's outcome, and keep its verdict for the summary."""

    def settle(judgement: Judgement) -> None:
        from goldformer.conformance.judging.verdict import Status
        from goldformer.conformance.reports.text import explain_verdict

        kept = judgement.drop_large_arrays()
        explained = request.config.stash[_DIAGNOSIS].explain(kept)
        request.config.stash[_JUDGED][kept.verdict.key] = kept
        request.node.stash[_EXPLAINED] = explained
        verdict = explained.verdict
        request.node.user_properties += _list_properties(verdict)
        if verdict.status is Status.SKIPPED:
            pytest.skip(f"{verdict.reason}: {verdict.message}")
        if verdict.bad or verdict.is_fault:
            pytest.fail(explain_verdict(explained, _load_bench(request.config).spec), pytrace=False)

    return settle


def _restore_judgement(verdict: Verdict, bench: Bench) -> Judgement | None:
    """Return the judgement of a failing case without its result, which another process has; None for other checks."""
    from goldformer.conformance.judging.cases import Judgement

    if not (verdict.bad and verdict.kind == "case"):
        return None
    at = replace(bench, dtype=verdict.dtype)
    case = bench.spec.cases[verdict.check]
    return Judgement(verdict, at, case.under(at.options(case)))


def _list_properties(verdict: Verdict) -> list[tuple[str, object]]:
    """Return the properties of a verdict for JUnit XML, by name, without empty ones."""
    properties = {
        "component": verdict.component, "dtype": verdict.dtype, "device": verdict.device, "reason": verdict.reason,
        "clauses": " ".join(verdict.clauses), "ratio": verdict.ratio, "repeat": verdict.reproduce,
    }  # fmt: skip
    return [(name, value) for name, value in properties.items() if value not in ("", None)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the verdict to the report, and say in one line what is wrong.

    The line is for JUnit XML and for pytest's short summary, which prints all of it where `CI` is set.
    """
    report = yield
    explained = item.stash.get(_EXPLAINED, None)
    if explained is not None and report.when == "call":
        setattr(report, KEY, explained.as_json())
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            crash.message = explained.verdict.message.partition("\n")[0]
    return report


class Summary:
    """The summary of the verdicts that reports carry, from workers of pytest-xdist too."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.explained: list[Explained] = []
        self.start = time.perf_counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the verdict and its diagnosis, which are an attribute of its report."""
        data = getattr(report, KEY, None)
        if data is not None:
            from goldformer.conformance.diagnosis.diagnosed import Explained

            self.explained.append(Explained.from_json(data))

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts that were collected."""
        return [verdict for verdict, _ in self.explained]

    @cached_property
    def record(self) -> RunRecord:
        """The record of the run, as `goldformer check` makes it."""
        from goldformer.adapters import DTYPES
        from goldformer.conformance.reports.record import record_run

        bench = _load_bench(self.config)
        # In the order of the spec: workers of pytest-xdist report in any.
        judged_components = {v.component for v in self.verdicts}
        cases = (
            case.id for name in bench.spec.components if name in judged_components for case in bench.spec.cases_of(name)
        )
        order = {check: place for place, check in enumerate((*cases, *bench.spec.properties))}
        self.explained.sort(key=lambda e: (DTYPES.index(e.verdict.dtype), order[e.verdict.check]))
        # Workers of pytest-xdist do not send their judgements: without results a late match is not added.
        diagnosis: Diagnosis = self.config.stash[_DIAGNOSIS]
        judged = self.config.stash[_JUDGED]
        judgements = [judged.get(v.key) or _restore_judgement(v, bench) for v in self.verdicts]
        run = diagnosis.complete_all(judgements, self.explained)
        at, seconds = replace(bench, dtype=run.verdicts[0].dtype), time.perf_counter() - self.start
        executed: Executed = self.config.stash[_EXECUTED]
        return record_run(at, run, seconds, self._list_absent(), executed, chosen=self._has_chosen(bench))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Refuse a run in which everything was skipped, or if strict a partial one; a fault has its own exit status."""
        if self.verdicts:
            from goldformer.conformance.reports.results import nothing_was_checked

            is_ok = session.exitstatus == pytest.ExitCode.OK
            if is_ok and nothing_was_checked(self.verdicts):
                session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
            elif is_ok and _load_bench(self.config).policy.strict and self.record.partial:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            faults = sum(v.is_fault for v in self.verdicts)
            if faults and session.testsfailed == faults:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        """Print the notes, the verdict and what to fix first, last of all: the summary of pytest stands above them."""
        yield
        if not self.explained:
            if _BENCH in self.config.stash and (absent := self._list_absent()):
                terminalreporter.write_line(f"Nothing was checked. Not implemented: {', '.join(absent)}", red=True)
            return
        from goldformer.conformance.reports.results import nothing_was_checked
        from goldformer.conformance.reports.summary import summarise

        bench = _load_bench(self.config)
        terminalreporter.section(f"conformance of {bench.adapter.name}")
        summary = summarise(self.record, bench.spec, each="each above", whole=terminalreporter.verbosity > 0)
        for line in summary:
            terminalreporter.write_line(line.text)
        if nothing_was_checked(self.verdicts):
            terminalreporter.write_line("Nothing was checked: everything was skipped.", red=True)
        if bench.policy.strict and self.record.partial:
            terminalreporter.write_line(f"--strict fails what is partial: {', '.join(self.record.partial)}", red=True)

    def _list_absent(self) -> list[str]:
        """Return the components that were asked for and that the adapter does not have."""
        from goldformer.conformance.selection import Selection, list_absent

        return list_absent(_load_bench(self.config), Selection((), _list_chosen(self.config)))

    def _has_chosen(self, bench: Bench) -> bool:
        """Return True if the run left out golden cases, such as by -k or the id of a test: few are enough then."""
        from goldformer.conformance.judging.applicability import plan
        from goldformer.conformance.selection import Selection, list_present

        present = list_present(bench, Selection((), _list_chosen(self.config)))
        return not {case.id for case in plan(bench.spec, present)} <= {v.check for v in self.verdicts}
