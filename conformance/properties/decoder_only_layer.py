"""Properties of the layer of a decoder-only model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments, Array
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs, with_params

KV_HEADS, GROUP, SEQ, SEED = st.integers(1, 2), st.integers(2, 3), st.integers(2, 4), st.integers(0, 999)
#: The parameters with columns for the heads of queries, and for those of keys and values.
OF_QUERIES, OF_KEYS = ("w_q", "b_q"), ("w_k", "b_k", "w_v", "b_v")


def draw_call(subject: Subject, seed: int, batch: int, seq: int, kv_heads: int, group: int) -> Arguments:
    """Draw a call of a layer whose heads have four channels and are together as wide as d_model."""
    heads = kv_heads * group
    sizes = {"batch": batch, "seq": seq, "heads": heads, "kv_heads": kv_heads, "pairs": 2, "d_model": 4 * heads}
    return subject.draw(sizes | {"d_ff": 5}, seed, num_heads=heads, num_kv_heads=kv_heads)


def take_heads(array: Array, order: Sequence[int] | NDArray[np.int64], heads: int) -> Array:
    """Return the columns of some of the heads that an array has, in an order."""
    blocks = array.reshape(*array.shape[:-1], heads, -1)[..., order, :]
    return blocks.reshape(*array.shape[:-1], -1)


@holds("dol-causality", masked=st.booleans(), seq=SEQ, seed=SEED, last=st.integers(0, 3))
def later_tokens_do_not_matter(subject: Subject, masked: bool, seq: int, seed: int, last: int) -> None:  # noqa: FBT001
    """Require that row i does not depend on the tokens after i, without a mask and with one that hides nothing."""
    arguments, other = (draw_call(subject, s, 1, seq, 1, 2) for s in (seed, seed + 1000))
    if masked:
        arguments = with_inputs(arguments, mask=np.ones((1, 1, 1, seq), dtype=bool))
    relations.ignores_later(subject, arguments, other, "x", last=last)


@holds("dol-expanded", kv_heads=KV_HEADS, group=GROUP, seq=SEQ, seed=SEED)
def heads_of_keys_are_shared(subject: Subject, kv_heads: int, group: int, seq: int, seed: int) -> None:
    """Require the output of the layer in which each query head has a copy of the weights of its keys and values."""
    arguments = draw_call(subject, seed, 1, seq, kv_heads, group)
    shared = relations.find_shared_heads(subject, kv_heads, group)
    copies = {n: take_heads(a, shared, kv_heads) for n, a in arguments.params.items() if n in OF_KEYS}
    attributes = {**arguments.attributes, "num_kv_heads": kv_heads * group}
    expanded = replace(with_params(arguments, **copies), attributes=attributes)
    claim = f"the output changes when each query head is given its own copy of head {shared.tolist()} of the keys"
    relations.gives_the_same(subject, arguments, expanded, claim)


@holds("dol-head-order", kv_heads=KV_HEADS, group=GROUP, seq=SEQ, seed=SEED)
def heads_may_change_places(subject: Subject, kv_heads: int, group: int, seq: int, seed: int) -> None:
    """Require that the heads of keys may change places with their query heads, and these within their group."""
    arguments = draw_call(subject, seed, 1, seq, kv_heads, group)
    shared, keys = relations.find_shared_heads(subject, kv_heads, group), np.roll(np.arange(kv_heads), seed)
    order = np.empty(len(shared), dtype=np.int64)
    for place, key in enumerate(keys):
        order[shared == place] = np.roll(np.flatnonzero(shared == key), 1)
    params = arguments.params
    moved = {n: take_heads(a, order, len(order)) for n, a in params.items() if n in OF_QUERIES}
    moved |= {n: take_heads(a, keys, kv_heads) for n, a in params.items() if n in OF_KEYS}
    moved["w_o"] = take_heads(params["w_o"].T, order, len(order)).T
    claim = f"the output changes when the query heads, with their weights and keys, come in the order {order.tolist()}"
    relations.gives_the_same(subject, arguments, with_params(arguments, **moved), claim)


@holds("dol-residual", seq=SEQ, seed=SEED)
def silent_blocks_pass_the_input_on(subject: Subject, seq: int, seed: int) -> None:
    """Require the input as the output if the last map of each block is 0."""
    arguments = draw_call(subject, seed, 1, seq, 1, 2)
    last = ("w_o", "b_o", "feed_forward.w_down", "feed_forward.b_down")
    silent = {name: np.zeros_like(array) for name, array in arguments.params.items() if name in last}
    output = subject.output(with_params(arguments, **silent))
    claim = "the output is not the input although the blocks add 0 to it"
    subject.agree(output, arguments.inputs["x"], 0.0, claim)


@holds("dol-batch", batch=st.sampled_from(relations.BATCHES), kv_heads=KV_HEADS, seq=SEQ, seed=SEED)
def samples_do_not_mix(subject: Subject, batch: int, kv_heads: int, seq: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    relations.ignores_batch(subject, draw_call(subject, seed, batch, seq, kv_heads, 2))
