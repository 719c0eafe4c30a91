"""Properties of the position-wise feed-forward network."""

from __future__ import annotations

from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject


@holds("ffn-positions", batch=st.integers(1, 2), seq=st.integers(2, 5), seed=st.integers(0, 999))
def positions_do_not_mix(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that permuted positions give permuted rows, and that no row depends on later positions."""
    sizes = {"batch": batch, "seq": seq, "d_model": 4, "d_ff": 6}
    arguments, other = (subject.draw(sizes, s) for s in (seed, seed + 1000))
    relations.follows_order(subject, arguments, "x", seed=seed)
    relations.ignores_later(subject, arguments, other, "x", last=0)
    wide = {"batch": 1 + 7 * (batch - 1), "seq": 1, "d_model": 16, "d_ff": 32}
    relations.ignores_batch(subject, subject.draw(wide, seed))
