"""The trial of the isolation: the slips of slips.yaml, each in an implementation that has one component alone.

`python -m benchmarks.slips` runs all of them as `goldformer check` does and prints what it says, the share with the
right place, the calls, and the CPU time that the isolation took.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from tests.support.wild import load_adapter, read_bench, split_declaration

from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.selection import Numerics


@dataclass(frozen=True)
class Slip:
    """A change of an implementation's text, in one or two places of it."""

    id: str
    file: str
    component: str
    edits: tuple[tuple[str, str], ...]
    places: tuple[str, ...]

    def apply(self, source: str) -> str:
        """Return a source with the slip; each old text is there once."""
        for old, new in self.edits:
            assert source.count(old) == 1, f"{self.file}: {old!r} is there {source.count(old)} times"
            source = source.replace(old, new)
        return source

    def is_placed(self, ids: Iterable[str], names: Iterable[str]) -> bool:
        """Return True if one of its places is named."""
        return any(place in text for place in self.places for text in (*ids, *names))


@cache
def read_slips() -> tuple[Slip, ...]:
    """Read all slips."""
    listed = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return tuple(
        Slip(f"{number}-{one['file']}", one["file"], one["component"], tuple(map(tuple, one["edits"])), one["places"])
        for number, one in enumerate(listed)
    )


def make_bench(slip: Slip, folder: Path, spec: Any, dtype: str = "float32") -> Bench:
    """Write an implementation with a slip and return it with what it deserves to declare."""
    (wild,) = read_bench([slip.file])
    adapter = load_adapter(slip.file, slip.apply(wild.source), folder, spec)
    Numerics().apply(adapter.arrays)
    declared, _ = split_declaration(wild.declares, spec)
    return Bench(spec, replace(adapter, conventions={**adapter.conventions, **declared}), dtype, "cpu")


def main() -> None:
    """Run the trial and print its figures."""
    from goldformer.conformance.diagnosis import isolation
    from goldformer.conformance.diagnosis.explain import Diagnosis
    from goldformer.conformance.diagnosis.findings import diagnose
    from goldformer.conformance.reports.text import format_remarks
    from goldformer.conformance.selection import Selection, checks
    from goldformer.spec import load_spec

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("ids", nargs="*", help="the slips to run, by number  [default: all]")
    chosen = parser.parse_args().ids
    spec, seconds, isolate = load_spec(), [], isolation.isolate

    def measure(*arguments: Any) -> Any:
        start = time.process_time()
        found = isolate(*arguments)
        seconds.append(time.process_time() - start)
        return found

    mock.patch.object(isolation, "isolate", measure).start()
    placed, calls, named, passed = 0, [], 0, 0
    for slip in (s for s in read_slips() if not chosen or s.id.partition("-")[0] in chosen):
        with tempfile.TemporaryDirectory() as folder:
            bench = make_bench(slip, Path(folder), spec)
            cases = tuple(case.id for case in spec.cases_of(slip.component) if not case.full_size)
            judgements = [check() for check in checks(bench, Selection(("float32",), (slip.component,), cases))]
            run = Diagnosis(spec).explain_all(judgements)
        found = next((isolated for v in run if (isolated := run.about(v).isolated)), None)
        named += found is None and any(v.bad for v in run)
        passed += not any(v.bad for v in run)
        right = found is not None and slip.is_placed(found.places, found.names)
        placed += right
        calls += [found.calls] if found else []
        print(f"── {slip.id} {slip.component}: {'right place' if right else 'not placed'}, of {', '.join(slip.places)}")
        print("\n".join(format_remarks(diagnose(run, spec))))
    seconds.sort()
    print(f"isolated {len(calls)}, in the right place {placed}; explained otherwise {named}; not caught {passed}")
    print(f"calls: median {sorted(calls)[len(calls) // 2]}, most {max(calls)}")
    print(f"CPU seconds of an isolation: median {seconds[len(seconds) // 2]:.2f}, most {seconds[-1]:.2f}")


if __name__ == "__main__":
    main()
