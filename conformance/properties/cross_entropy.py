"""Properties of the loss."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject
from goldformer.spec.draw import below

PAD = 0


@holds("ce-padding", seq=st.integers(1, 4), more=st.integers(1, 3), vocab=st.integers(3, 6), seed=st.integers(0, 999))
def padding_does_not_count(subject: Subject, seq: int, more: int, vocab: int, seed: int) -> None:
    """Require that padding after the targets, with any logits, leaves the loss as it is."""
    sizes = {"batch": 2, "seq": seq + more, "vocab": vocab}
    logits = subject.draw(sizes, seed).inputs["logits"]
    targets = 1 + below(vocab - 1, seed, "targets", (2, seq))
    padded = np.pad(targets, ((0, 0), (0, more)), constant_values=PAD)
    plain = Arguments({"logits": logits[:, :seq], "targets": targets}, {}, {"pad_id": PAD})
    longer = Arguments({"logits": logits, "targets": padded}, {}, {"pad_id": PAD})
    claim = f"{more} positions of padding change the loss"
    subject.agree(subject.output(longer), subject.output(plain), subject.bound(plain), claim)
