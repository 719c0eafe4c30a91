"""The quality of the diagnosis: each mistake made by itself, hidden in a larger component, and unknown to it.

Run with `make diagnosis`. Every mistake that NumPy can express is made on the textbook and the suite's golden cases
and properties are run on it in float32:

- alone: its component is there and so are those it is built of;
- hidden: only the smallest component that contains it is there, as in an implementation that exposes whole layers;
- unknown: one mistake in five, drawn at random, is left out of the diagnosis, which must not name another one.

Of the neighbours of the textbook, which are generated, some are drawn:

- neighbour: it is known, and should be named, or something that no case tells from it;
- held out: one neighbour in five is left out; what is then said reproduces every failing case, or is not claimed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Final

import click

from goldformer.adapters.protocol import Adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.findings import CLOSEST, MISTAKE_FOUND, POSSIBLE_CAUSES, diagnose
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.neighbours import find_made, neighbours
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.run import Numerics, Selection, checks
from goldformer.spec import Spec, load_spec

#: One mistake in this many is left out.
FOLDS: Final = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings about one mistake: `place` is its rank among them, 1 for first, None if it is not named."""

    mistake: str
    way: str
    caught: bool
    place: int | None
    said: str
    seconds: float

    @property
    def word(self) -> str:
        """The outcome in a word."""
        if not self.caught:
            return "not caught"
        if self.way in ("neighbour", "held out") and self.place is None and MISTAKE_FOUND in self.said:
            return "explained in other words"
        if self.way in ("unknown", "held out"):
            # What the cases list may still name it; what is told from results alone cannot.
            return "said to be another" if MISTAKE_FOUND in self.said else "caught, and not said to be another"
        if self.place is not None:
            return "first" if self.place == 1 else "among three" if self.place <= 3 else "later"
        return "unknown" if MISTAKE_FOUND not in self.said else "misnamed"


@cache
def spec_() -> Spec:
    """Load the spec once in each process."""
    Numerics().apply("numpy")
    return load_spec()


def examine(mistake: str, way: str, left_out: frozenset[str]) -> Outcome | None:
    """Run the suite on one mistake; None if no component can hide it."""
    spec = spec_()
    component = (spec.mistakes if mistake in spec.mistakes else neighbours())[mistake].component
    book = find_made(mistake).make()
    if way == "hidden":
        holders = [name for name in spec.components if component in spec.list_dependencies(name)]
        if not holders:
            return None
        component = min(holders, key=lambda name: len(spec.list_dependencies(name)))
        book = SimpleNamespace(ARRAYS="numpy", **{component: getattr(book, component)})
    adapter = Adapter.from_object(book, mistake, spec)
    bench = Bench(spec, adapter, "float32", "cpu")
    listing = {case.component for case in spec.cases.values() if mistake in case.kills}
    parts = spec.list_dependencies(component) if way != "hidden" else ()
    seen = tuple(name for name in spec.components if name in {component, *parts, *(listing if not parts else ())})
    start = time.perf_counter()
    judgements = (check() for check in checks(bench, Selection(("float32",), seen)))
    verdicts = Diagnosis(spec, left_out).explain_all(judgements)
    remarks = list(diagnose(verdicts, spec))
    said = "\n".join(f"{remark.label}: {remark.text}" for remark in remarks)
    # What is said to be it comes before what could be it, whichever component it is said of.
    labels = (MISTAKE_FOUND, CLOSEST, "Or", POSSIBLE_CAUSES)
    naming = [remark.mistakes for label in labels for remark in remarks if remark.label == label]
    place = next((i for i, ids in enumerate(naming, 1) if mistake in ids), None)
    return Outcome(mistake, way, any(v.bad for v in verdicts), place, said, time.perf_counter() - start)


def tasks(seed: int, drawn: int) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield all tasks; the seed draws the mistakes that are left out, and so many neighbours."""
    ids = list(implementations())
    for mistake in ids:
        yield mistake, "alone", frozenset()
        yield mistake, "hidden", frozenset()
    shuffled = random.Random(seed).sample(ids, len(ids))
    left_out = frozenset(shuffled[: len(ids) // FOLDS])
    for mistake in left_out:
        yield mistake, "unknown", left_out
    generated = random.Random(seed).sample(list(neighbours()), len(neighbours()))
    held_out = frozenset(generated[: len(generated) // FOLDS])
    yield from ((id_, "neighbour", frozenset()) for id_ in generated[-drawn:] if drawn)
    yield from ((id_, "held out", held_out) for id_ in generated[:drawn] if id_ in held_out)


@click.command()
@click.option("--jobs", type=int, default=None, help="Processes.  [default: all cores]")
@click.option("--seed", type=int, default=1, show_default=True, help="Draws which mistakes are left out.")
@click.option("--neighbours", "drawn", type=int, default=100, show_default=True, help="How many neighbours are drawn.")
@click.option("--verbose", "-v", is_flag=True, help="What is said of those that are not named first.")
def main(jobs: int | None, seed: int, drawn: int, *, verbose: bool) -> None:
    """Print how many are caught and named."""
    listed = list(tasks(seed, drawn))
    with ProcessPoolExecutor(jobs) as pool:
        outcomes = [o for o in pool.map(examine, *zip(*listed, strict=True), chunksize=4) if o is not None]
    for way in ("alone", "hidden", "unknown", "neighbour", "held out"):
        if not (mine := [o for o in outcomes if o.way == way]):
            continue
        counts = Counter(o.word for o in mine)
        print(f"{way}: {len(mine)} mistakes; " + ", ".join(f"{n} {word}" for word, n in counts.most_common()))
        for word in counts:
            if word != "first":
                print(f"  {word}: " + ", ".join(o.mistake for o in mine if o.word == word))
        if verbose:
            for o in mine:
                if o.word != "first":
                    print(f"── {o.mistake} ({o.way}, {o.word})\n{o.said}")
    seconds = sorted(o.seconds for o in outcomes)
    print(f"a run: median {seconds[len(seconds) // 2]:.1f} s, slowest {seconds[-1]:.1f} s")


if __name__ == "__main__":
    main()
