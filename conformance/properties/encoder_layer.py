"""Properties of the encoder layer."""

from __future__ import annotations

from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject


@holds("enc-permutation", batch=st.integers(1, 2), seq=st.integers(2, 4), seed=st.integers(0, 999))
def permutation_equivariance(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that permuted tokens give permuted rows, in every sample."""
    sizes = {"batch": batch, "seq": seq, "heads": 2, "d_k": 2, "d_v": 2, "d_model": 4, "d_ff": 5}
    arguments = subject.draw(sizes, seed, num_heads=2)
    relations.follows_order(subject, arguments, "x", seed=seed)


@holds(
    "enc-batch",
    batch=st.sampled_from(relations.BATCHES),
    seq=st.integers(1, 4),
    width=st.sampled_from([2, 8]),
    seed=st.integers(0, 999),
)
def samples_do_not_mix(subject: Subject, batch: int, seq: int, width: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    sizes = {"batch": batch, "seq": seq, "heads": 2, "d_k": width, "d_v": width, "d_model": 2 * width, "d_ff": 5}
    relations.ignores_batch(subject, subject.draw(sizes, seed, num_heads=2))
