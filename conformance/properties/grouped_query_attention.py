"""Properties of grouped-query attention."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs

KV_HEADS, GROUP, SEQ, SEED = st.integers(1, 3), st.integers(2, 3), st.integers(2, 5), st.integers(0, 999)


def draw_call(subject: Subject, seed: int, kv_heads: int, group: int, q_seq: int, kv_seq: int) -> Arguments:
    """Draw a call of one sample with query, key and value."""
    sizes = {"batch": 1, "kv_heads": kv_heads, "group": group, "q_seq": q_seq, "kv_seq": kv_seq, "d_k": 3, "d_v": 2}
    return subject.draw(sizes, seed)


@holds("gqa-expanded", kv_heads=KV_HEADS, group=GROUP, q_seq=SEQ, kv_seq=SEQ, seed=SEED)
def heads_are_shared(subject: Subject, kv_heads: int, group: int, q_seq: int, kv_seq: int, seed: int) -> None:
    """Require the output of the call whose keys and values have a head of their own for each query head."""
    arguments = draw_call(subject, seed, kv_heads, group, q_seq, kv_seq)
    shared = relations.find_shared_heads(subject, kv_heads, group)
    expanded = {name: arguments.inputs[name][:, shared] for name in ("key", "value")}
    claim = f"the output changes when each query head is given its own copy of head {shared.tolist()} of the keys"
    relations.gives_the_same(subject, arguments, with_inputs(arguments, **expanded), claim)


@holds("gqa-query-order", kv_heads=KV_HEADS, group=GROUP, q_seq=SEQ, kv_seq=SEQ, seed=SEED)
def order_of_queries_in_a_group(
    subject: Subject, kv_heads: int, group: int, q_seq: int, kv_seq: int, seed: int
) -> None:
    """Require that permuted query heads of one group have permuted outputs, and other heads the same as before."""
    arguments = draw_call(subject, seed, kv_heads, group, q_seq, kv_seq)
    order = np.arange(kv_heads * group)
    members = np.flatnonzero(relations.find_shared_heads(subject, kv_heads, group) == seed % kv_heads)
    order[members] = np.roll(members, 1)
    permuted = with_inputs(arguments, query=arguments.inputs["query"][:, order])
    plain, other = (subject.output(call) for call in (arguments, permuted))
    claim = f"with the query heads of one group in the order {order.tolist()}, the outputs do not come in that order"
    subject.agree(other, plain[:, order], subject.bound(arguments), claim)


@holds("gqa-key-order", kv_heads=KV_HEADS, group=GROUP, q_seq=SEQ, kv_seq=SEQ, seed=SEED)
def order_of_keys(subject: Subject, kv_heads: int, group: int, q_seq: int, kv_seq: int, seed: int) -> None:
    """Require that the order of keys does not matter if values have the same order."""
    if q_seq == kv_seq:
        relations.require_no_order(subject)
    arguments = draw_call(subject, seed, kv_heads, group, q_seq, kv_seq)
    relations.ignores_order(subject, arguments, "key", "value", seed=seed)


@holds("gqa-batch", batch=st.sampled_from(relations.BATCHES), kv_heads=KV_HEADS, kv_seq=SEQ, seed=SEED)
def samples_do_not_mix(subject: Subject, batch: int, kv_heads: int, kv_seq: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    sizes = {"batch": batch, "kv_heads": kv_heads, "group": 2, "q_seq": 3, "kv_seq": kv_seq, "d_k": 3, "d_v": 2}
    relations.ignores_batch(subject, subject.draw(sizes, seed))
