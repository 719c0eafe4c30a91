"""The wild bench: programs in the styles that people write, with the mistakes that each lists, checked as a user would.

`python -m benchmarks.wild --out FILE` runs the bench in slices and prints its table; `--help` lists the options.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.wild import Mistake, Wild, read_bench, split_declaration

#: The two runs of an implementation: as its file is, and with what it deserves to declare.
DEFAULT, DECLARED = "default", "declared"
RUNS = (DEFAULT, DECLARED)


# Runs


@dataclass(frozen=True)
class Settings:
    """The parts of an implementation that are run."""

    dtype: str = "float32"
    #: Golden cases only. With properties, of correct code that fails one with its mistake only repeated calls are run.
    cases_only: bool = False
    #: Without the models of full size, each of which takes as long as everything else of an implementation.
    small: bool = False


def run(wild: Wild, declaration: str, mistake: str | None, settings: Settings, spec: Any) -> dict[str, Any]:
    """Check an implementation as `goldformer check` does, and return what came out as plain data."""
    source = wild.source if mistake is None else wild.apply_mistake(mistake)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        path = Path(folder) / f"{wild.name}.py"
        path.write_text(source, encoding="utf-8")
        try:
            found = _check(path, wild, declaration, settings, spec, stop_at_failure=mistake is not None)
        except Exception as error:  # a crash of goldformer itself is a result of the bench
            found = {"crash": f"{type(error).__name__}: {error}"}
        finally:
            sys.path[:] = [entry for entry in sys.path if entry != str(path.parent.resolve())]
    place = {"implementation": wild.name, "run": declaration, "mistake": mistake}
    return {**place, **asdict(settings), "seconds": round(time.perf_counter() - start, 2), **found}


def _check(
    path: Path, wild: Wild, declaration: str, settings: Settings, spec: Any, *, stop_at_failure: bool
) -> dict[str, Any]:
    # Imported here: reading the bench needs none of them.
    from goldformer.adapters import find_adapter
    from goldformer.conformance.diagnosis.explain import Diagnosis
    from goldformer.conformance.diagnosis.findings import diagnose
    from goldformer.conformance.judging.cases import Bench
    from goldformer.conformance.selection import Numerics, Selection, checks

    adapter = find_adapter(str(path), spec)
    Numerics().apply(adapter.arrays)
    declared, unknown = split_declaration(wild.declares, spec)
    if declaration == DECLARED:
        adapter = replace(adapter, conventions={**adapter.conventions, **declared})
    bench = Bench(spec, adapter, settings.dtype, "cpu")
    components = tuple(adapter.functions)
    own = [case for component in components for case in spec.cases_of(component)]
    cases = tuple(case.id for case in own if not (settings.small and case.full_size))
    judgements = [check() for check in checks(bench, Selection((settings.dtype,), components, cases))]
    if not settings.cases_only:
        is_enough = stop_at_failure and wild.is_correct and any(j.verdict.reason == "wrong-value" for j in judgements)
        properties = ("repeat-calls",) if is_enough else tuple(spec.properties)
        judgements += [check() for check in checks(bench, Selection((settings.dtype,), components, (), properties))]
    verdicts = Diagnosis(spec).explain_all(judgements)
    values = [v for v in verdicts if v.kind == "case" and spec.cases[v.check].error is None]
    return {
        "declared": dict(adapter.conventions),
        "not_in_spec": unknown if declaration == DECLARED else {},
        # The cases of options that it does not have are not its own.
        "exist": sum(v.reason != "convention" for v in values),
        "judged": sum(v.is_judged for v in values),
        # Without the temporary folder: the message of the same failure is the same in another run.
        "bad": [
            [v.check, v.component, v.reason, v.message.replace(f"{path.parent}/", "")[:200]] for v in verdicts if v.bad
        ],
        "faults": [
            [v.check, (verdicts.get_note(v).fault or v.message)[:200]]
            for v in verdicts
            if v.is_fault or verdicts.get_note(v).fault
        ],
        "findings": [
            [f.label, f.text[:400], [*f.mistakes, *_find_options(f.text, spec)]] for f in diagnose(verdicts, spec)
        ],
    }


def _find_options(text: str, spec: Any) -> Iterator[str]:
    """Yield the options that a finding names, as "norm_placement: pre"."""
    for name, convention in spec.conventions.items():
        for option in convention.options:
            if f"{name}: {option} (" in text:
                yield f"{name}: {option}"
        yield from re.findall(rf"\b{name}: \d[\d.]*e-\d+\b(?! \()", text) if convention.number else ()


# What the runs amount to


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run of code with a mistake, next to the same run without it."""

    caught: bool
    #: The first component that is newly to be fixed is one that the mistake broke.
    placed: bool
    #: The diagnosis says "found", and calls it what it is.
    named: bool
    #: The diagnosis says "found" of something else.
    misnamed: bool
    #: What it says.
    said: tuple[str, ...]


def judge_mistake(mistake: Mistake, record: dict[str, Any], clean: dict[str, Any]) -> Outcome:
    """Compare a run of code with a mistake with that of the code as it is, under the same declaration.

    Code that deviates on purpose fails without the mistake already. The mistake shows in results that differ from
    those, and is caught if something else is said of a component where they do.
    """
    failed = {check for check, *_ in clean["bad"]}
    fails_newly = any(check not in failed for check, *_ in record["bad"])
    broken = {component for _, component, *_ in (bad for bad in record["bad"] if bad not in clean["bad"])}
    before, after = _list_to_fix(clean), _list_to_fix(record)
    fresh = [component for component, said in after if (component, said) not in before] or [c for c, _ in after[:1]]
    known = {id_ for ids in _list_found(clean) for id_ in ids}
    said = [ids for ids in _list_found(record) if not set(ids) <= known]
    right = [ids for ids in said if set(ids) & set(mistake.ids)]
    # Where two names are told as equals, both must be true.
    right += [ids for ids in _list_equals(record) if set(ids) <= set(mistake.ids)]
    caught = fails_newly or (after != before and bool(broken & set(fresh)))
    return Outcome(
        caught=caught,
        placed=caught and bool(fresh) and fresh[0] in broken,
        named=bool(right),
        misnamed=bool(said) and not right,
        said=tuple(" and ".join(ids) for ids in said),
    )


def _list_found(record: dict[str, Any]) -> list[list[str]]:
    """Return the names that are told as found, each with those that no case tells from it."""
    found: list[list[str]] = []
    last = ""
    for label, _, ids in record["findings"]:
        if label in _FOUND:
            found.append([*ids])
        elif label == "Or" and last in _FOUND:
            found[-1] += ids
        last = last if label == "Or" else label
    return found


def _list_equals(record: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the names that are told as equally possible, for each component."""
    told: list[str] = []
    for label, _, ids in [*record["findings"], ("", "", [])]:
        if label != "Or":
            if len(told) > 1:
                yield told
            told = [*ids] if label == "Possible causes" else []
        elif told:
            told += ids


def _list_to_fix(record: dict[str, Any]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Return the components that are to be fixed, each with what is said of its cause."""
    found: list[tuple[str, list[tuple[str, ...]]]] = []
    for label, text, ids in record["findings"]:
        if label in _TO_FIX:
            found.append((text, []))
        elif found and label in (*_FOUND, *_UNCERTAIN):
            found[-1][1].append((label, *ids))
    return found


#: The labels of a component that is to be fixed.
_TO_FIX = ("Fix first", "Fix too")
#: The labels under which the diagnosis is certain.
_FOUND = ("Mistake found", "Option found")
#: The labels under which it is not, or has nothing to say.
_UNCERTAIN = ("Closest known mistake", "Closest option", "Possible causes", "Cause unknown")


#: What an option that is not declared looks like: the adapters take zeros for a table that the call does not have, and
#: a number that is added to masked scores is why a row without a key follows its scores.
_LOOKS_LIKE = {
    "positions: learned": ("pe-missing", "transformer.embedding-scaled-positions-missing"),
    "empty_row: unspecified": ("mask-added-1e4", "mask-added-1e9"),
}


def describe_verdict(wild: Wild, record: dict[str, Any]) -> str:
    """Return the verdict on an implementation in words: conforms, fails with a name, or fails without one."""
    if "crash" in record:
        return f"crash: {record['crash']}"
    if record["faults"]:
        return f"fault: {record['faults'][0][1]}"
    if not record["bad"]:
        return "conforms" if record["judged"] else "nothing judged"
    names = {id_ for label, _, ids in record["findings"] if label in _FOUND for id_ in ids}
    deserved = {*wild.on_purpose, *(f"{name}: {option}" for name, option in wild.variant.items())}
    deserved |= {id_ for option in deserved for id_ in _LOOKS_LIKE.get(option, ())}
    # An option that is left open comes out as any of its values.
    left_open = tuple(f"{name}: " for name, option in wild.variant.items() if option == "unspecified")
    text = ", ".join(sorted(names))
    if names and all(name in deserved or name.startswith(left_open) for name in names):
        unexplained = any(label in _UNCERTAIN for label, _, _ in record["findings"])
        return f"{'partly named' if unexplained else 'named'}: {text}"
    reasons = Counter(reason for _, _, reason, _ in record["bad"])
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f"misnamed: {text} ({counts})" if names else f"fails without a name ({counts})"


HEADINGS = (
    "implementation", "deserves", "lines", "default run", "judged", "declared run", "judged",
    "mistakes", "caught", "placed", "named", "misnamed",
)  # fmt: skip


def make_table(bench: Iterable[Wild], records: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each implementation that was run, under HEADINGS; mistakes are counted over all their runs."""
    by_place = {(r["implementation"], r["run"], r["mistake"]): r for r in records}
    rows, totals = [], Counter[str]()
    for wild in bench:
        clean = {name: by_place[wild.name, name, None] for name in RUNS if (wild.name, name, None) in by_place}
        if not clean:
            continue
        outcomes = list(judge_all(wild, by_place).values())
        counts = {
            "mistakes": len(outcomes),
            "caught": sum(o.caught for o in outcomes),
            "placed": sum(o.placed for o in outcomes),
            "named": sum(o.named for o in outcomes),
            "misnamed": sum(o.misnamed for o in outcomes),
        }
        totals.update(counts)
        cells = []
        for name in RUNS:
            record = clean.get(name)
            judged = f"{record['judged']}/{record['exist']}" if record and "exist" in record else "–"
            cells += [describe_verdict(wild, record) if record else "–", judged]
        kind = "correct" if wild.is_correct else "variant"
        rows.append((wild.name, kind, str(wild.adapter_lines), *cells, *map(str, counts.values())))
    return [*rows, ("all", "", "", "", "", "", "", *(str(totals[name]) for name in HEADINGS[7:]))]


def judge_all(wild: Wild, by_place: dict[Any, dict[str, Any]]) -> dict[tuple[str, str], Outcome]:
    """Return the outcome of each run with a mistake, by run and mistake, if the run without it is there."""
    return {
        (name, mistake): judge_mistake(wild.mistakes[mistake], record, clean)
        for name in RUNS
        for mistake in wild.mistakes
        if (record := by_place.get((wild.name, name, mistake))) and "crash" not in record
        if (clean := by_place.get((wild.name, name, None))) and "crash" not in clean
    }


def format_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the rows as a table of Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (HEADINGS, ("---",) * len(HEADINGS), *rows))


def list_remarks(bench: Iterable[Wild], records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each mistake that was missed, misplaced or misnamed."""
    by_place = {(r["implementation"], r["run"], r["mistake"]): r for r in records}
    for wild in bench:
        for (name, mistake), outcome in judge_all(wild, by_place).items():
            where = f"{wild.name} ({name}): {mistake}"
            if not outcome.caught:
                yield f"missed     {where}: {wild.mistakes[mistake].sentence}"
            elif not outcome.placed:
                yield f"misplaced  {where}"
            if outcome.misnamed:
                right = " or ".join(wild.mistakes[mistake].ids) or "(no id)"
                yield f"misnamed   {where}: {'; '.join(outcome.said)}, not {right}"


# The command line


def _plan(bench: Iterable[Wild], declarations: Iterable[str], mistakes: str) -> Iterator[tuple[Wild, str, str | None]]:
    """Yield the runs: all implementations as they are, and then with their mistakes."""
    listed = list(bench)
    yield from ((wild, name, None) for wild in listed for name in declarations)
    if mistakes != "none":
        under = RUNS if mistakes == "both" else (mistakes,)
        # The first mistake of each, then the second: what was run when the time is over is a sample of all.
        for turn in range(max(len(wild.mistakes) for wild in listed)):
            for wild in listed:
                yield from ((wild, name, mistake) for mistake in list(wild.mistakes)[turn : turn + 1] for name in under)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing in the file of results until the time is over, and print the table of what is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wild", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="implementations; all by default")
    parser.add_argument("--out", type=Path, help="file of results in lines of JSON; a further call goes on there")
    parser.add_argument("--seconds", type=float, default=240, help="start no run after this time (default: 240)")
    parser.add_argument("--runs", default=",".join(RUNS), help="runs without mistakes (default: default,declared)")
    parser.add_argument("--mistakes", choices=("none", *RUNS, "both"), default=DECLARED, help="run these under …")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cases-only", action="store_true", help="leave properties out")
    parser.add_argument("--small", action="store_true", help="leave models of full size out")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    options = parser.parse_args(arguments)
    bench, settings = read_bench(options.names), Settings(options.dtype, options.cases_only, options.small)
    records = _read_results(options.out, settings)
    done = {(r["implementation"], r["run"], r["mistake"]) for r in records}
    planned = _plan(bench, options.runs.split(","), options.mistakes)
    todo = [job for job in planned if (job[0].name, *job[1:]) not in done]
    start = time.monotonic()
    left = len(todo)
    if todo and options.seconds > 0:
        from goldformer.spec import load_spec

        spec = load_spec()
        for wild, declaration, mistake in todo:
            if time.monotonic() - start >= options.seconds:
                break
            records.append(run(wild, declaration, mistake, settings, spec))
            left -= 1
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(records[-1], ensure_ascii=False) + "\n")
    if options.json:
        print(json.dumps(records, ensure_ascii=False, indent=1))
    else:
        print(format_table(make_table(bench, records)))
        print(*list_remarks(bench, records), sep="\n")
    if left:
        print(f"{left} runs are left: call it again with the same --out", file=sys.stderr)
    return 0


def _read_results(path: Path | None, settings: Settings) -> list[dict[str, Any]]:
    """Read the results of earlier calls with the same settings."""
    if path is None or not path.exists():
        return []
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [r for r in records if asdict(settings).items() <= r.items()]


if __name__ == "__main__":
    sys.exit(main())
