"""Properties of attention with a cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs
from goldformer.spec.sessions import AFTER, CALLS

SEED = st.integers(0, 999)
#: The numbers of new tokens of the calls.
CUTS = st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple)


def draw_call(subject: Subject, seed: int, cut: tuple[int, ...], batch: int = 1) -> Arguments:
    """Draw a session whose calls have these numbers of new tokens."""
    sizes = {"batch": batch, "kv_heads": 2, "group": 2, "seq": sum(cut), "d_k": 3, "d_v": 2}
    return subject.draw(sizes, seed, **{CALLS: cut})


def with_script(arguments: Arguments, calls: tuple[int, ...], after: tuple[int, ...] | None = None) -> Arguments:
    """Return the same tokens, cut into other calls."""
    script = {CALLS: calls} if after is None else {CALLS: calls, AFTER: after}
    return replace(arguments, attributes=script)


@holds("cache-cut", cut=CUTS, seed=SEED)
def cut_does_not_matter(subject: Subject, cut: tuple[int, ...], seed: int) -> None:
    """Require the outputs of one call with all tokens, of the drawn calls, and of a call for each token."""
    arguments = draw_call(subject, seed, cut)
    for calls in ((sum(cut),), (1,) * sum(cut)):
        claim = f"calls with {list(cut)} new tokens give something else than calls with {list(calls)}"
        relations.gives_the_same(subject, with_script(arguments, calls), arguments, claim)


@holds("cache-later", cut=CUTS, seed=SEED)
def later_tokens_change_nothing(subject: Subject, cut: tuple[int, ...], seed: int) -> None:
    """Require that other tokens in the second half leave the outputs of the first half as they were."""
    arguments, other = (draw_call(subject, number, cut) for number in (seed, seed + 1000))
    relations.ignores_later(subject, arguments, other, "query", "key", "value", last=sum(cut) // 2 - 1)


@holds("cache-turns", cut=CUTS, seed=SEED)
def sequences_do_not_mix(subject: Subject, cut: tuple[int, ...], seed: int) -> None:
    """Require the outputs of a sequence by itself while each of its calls follows one of another sequence."""
    alone = draw_call(subject, seed, cut)
    turns = tuple(new for new in cut for _ in range(2))
    after = tuple(max(0, number - 2) for number in range(1, len(turns) + 1))
    # Of each pair of calls, the first has tokens of another sequence.
    ends = np.cumsum(turns[::2])
    rows = np.concatenate([np.arange(end - new, end) for new, end in zip(cut, ends, strict=True) for _ in range(2)])
    is_own = np.concatenate([np.full(new, number % 2 == 1) for number, new in enumerate(turns)])
    both = {
        name: np.where(is_own[:, None], array[:, :, rows], -array[:, :, rows]) for name, array in alone.inputs.items()
    }
    taken = subject.output(with_script(with_inputs(alone, **both), turns, after))
    expected = subject.output(alone)
    claim = "a sequence gives something else while calls of another one take turns with its own"
    subject.agree(taken[:, :, is_own], expected, subject.bound(alone), claim)


@holds("cache-batch", batch=st.sampled_from(relations.BATCHES), cut=CUTS, seed=SEED)
def samples_do_not_mix(subject: Subject, batch: int, cut: tuple[int, ...], seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    relations.ignores_batch(subject, draw_call(subject, seed, cut, batch))
