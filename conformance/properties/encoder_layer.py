"""Properties of the encoder layer."""

from __future__ import annotations

from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, draw_arguments


@holds("enc-permutation", batch=st.integers(1, 2), seq=st.integers(2, 4), seed=st.integers(0, 999))
def permutation_equivariance(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that permuted tokens give permuted rows, in every sample."""
    sizes = {"batch": batch, "seq": seq, "heads": 2, "d_k": 2, "d_v": 2, "d_model": 4, "d_ff": 5}
    arguments = draw_arguments("encoder_layer", subject.bench, sizes, seed, num_heads=2)
    relations.follows_order(subject, arguments, "x", seed=seed)
