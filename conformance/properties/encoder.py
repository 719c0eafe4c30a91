"""Properties of the encoder."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs


@holds("encoder-batch", seq=st.integers(1, 3), more=st.integers(1, 2), seed=st.integers(0, 999))
def padding_and_neighbours_do_not_matter(subject: Subject, seq: int, more: int, seed: int) -> None:
    """Require that padding and a longer neighbour leave every token's row as it is."""
    sizes = {"batch": 2, "seq": seq + more, "heads": 2, "d_k": 2, "d_v": 2, "d_model": 4, "d_ff": 3, "layers": 2}
    batch = subject.draw(sizes, seed, num_heads=2, num_layers=2)
    by_itself = with_inputs(batch, x=batch.inputs["x"][1:, :seq])
    lengths = np.array([seq + more, seq])[:, None, None, None]
    padded = with_inputs(batch, mask=np.arange(seq + more) < lengths)
    claim = f"the output of a sample changes when {more} padding follows it and a longer sample is next to it"
    relations.ignores_neighbour(subject, padded, by_itself, length=seq, claim=claim)
