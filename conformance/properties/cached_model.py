"""Properties of the decoder-only model with a cache."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.decoder_only_model import VOCAB, draw_ids
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs
from goldformer.spec.sessions import CALLS, drop_script

SEED = st.integers(0, 999)
#: The numbers of new words of the calls.
CUTS = st.lists(st.integers(1, 3), min_size=2, max_size=3).map(tuple)


def draw_call(subject: Subject, seed: int, cut: tuple[int, ...]) -> Arguments:
    """Draw a session of a model with two layers, whose calls have these numbers of new words."""
    sizes = {"heads": 4, "kv_heads": 2, "pairs": 2, "d_model": 16, "d_ff": 5, "vocab": VOCAB}
    model = {"num_heads": 4, "num_kv_heads": 2, "num_layers": 2}
    arguments = subject.draw(sizes, seed, **model, **{CALLS: cut})
    return with_inputs(arguments, ids=draw_ids(seed, 1, sum(cut)))


def with_calls(arguments: Arguments, calls: tuple[int, ...]) -> Arguments:
    """Return the same words, cut into other calls."""
    return replace(arguments, attributes={**arguments.attributes, CALLS: calls})


@holds("lmc-cut", cut=CUTS, seed=SEED)
def cut_does_not_matter(subject: Subject, cut: tuple[int, ...], seed: int) -> None:
    """Require the logits of one call with all words, of the drawn calls, and of a call for each word."""
    arguments = draw_call(subject, seed, cut)
    for calls in ((sum(cut),), (1,) * sum(cut)):
        claim = f"calls with {list(cut)} new words give something else than calls with {list(calls)}"
        relations.gives_the_same(subject, with_calls(arguments, calls), arguments, claim)


@holds("lmc-uncached", cut=CUTS, seed=SEED)
def cache_does_not_matter(subject: Subject, cut: tuple[int, ...], seed: int) -> None:
    """Require the logits of the model without a cache."""
    arguments = draw_call(subject, seed, cut)
    whole = replace(arguments, attributes=drop_script(arguments.attributes))
    cached, expected = subject.output(arguments), subject.call(whole, "decoder_only_model")["logits"]
    claim = f"calls with {list(cut)} new words give something else than decoder_only_model gives for all of them"
    subject.agree(cached, expected, subject.bound(arguments), claim)
