"""Properties of multi-head attention with separate projections."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs, with_params

BATCH, SEQ, SEED = st.integers(1, 2), st.integers(2, 4), st.integers(0, 999)
LAST = st.integers(0, 4)
TOKENS = ("query", "key", "value")
#: The projections into the heads.
MAPS = tuple(f"{letter}_{role}" for letter in "wb" for role in "qkv")

#: A rotation with only elements ±1/2, so that it turns short numbers into short numbers.
ROTATION = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2


def draw_self_attention(subject: Subject, seed: int, batch: int, seq: int, heads: int = 2, width: int = 3) -> Arguments:
    """Draw a call with as many queries as keys and values, all different, so that swapping any of them shows."""
    sizes = {"batch": batch, "heads": heads, "q_seq": seq, "kv_seq": seq, "d_k": width, "d_v": width}
    sizes |= dict.fromkeys(("d_query", "d_key", "d_value", "d_model"), heads * width)
    return subject.draw(sizes, seed, num_heads=heads)


@holds("mha-permutation", batch=BATCH, seq=SEQ, seed=SEED)
def permutation_equivariance(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that permuted tokens give permuted rows."""
    relations.follows_order(subject, draw_self_attention(subject, seed, batch, seq), *TOKENS, seed=seed)


@holds("mha-causality", batch=BATCH, seq=SEQ, seed=SEED, last=LAST)
def later_tokens_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, last: int) -> None:
    """Require that under a causal mask, row i does not depend on the tokens after i."""
    mask = np.tril(np.ones((seq, seq), dtype=bool))[None, None]
    arguments = with_inputs(draw_self_attention(subject, seed, batch, seq), mask=mask)
    relations.ignores_later(
        subject, arguments, draw_self_attention(subject, seed + 1000, batch, seq), *TOKENS, last=last
    )


@holds("mha-hidden-tokens", batch=st.just(2), seq=SEQ, seed=SEED)
def padding_does_not_matter(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that the rows of a sample do not depend on the padding after it; each sample has its own length."""
    keep = np.arange(seq) < (1 + (seed - np.arange(batch)) % seq)[:, None]
    arguments = with_inputs(draw_self_attention(subject, seed, batch, seq), mask=keep[:, None, None, :])
    other = draw_self_attention(subject, seed + 1000, batch, seq)
    relations.ignores_hidden(subject, arguments, other, *TOKENS, keep=keep, padded_rows=True)
    relations.ignores_padding(subject, arguments, *TOKENS, length=int(keep[-1].sum()), padded_rows=True)


@holds("mha-batch", batch=st.sampled_from(relations.BATCHES), seq=SEQ, width=st.sampled_from([3, 8]), seed=SEED)
def samples_do_not_mix(subject: Subject, batch: int, seq: int, width: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    relations.ignores_batch(subject, draw_self_attention(subject, seed, batch, seq, width=width))


@holds("mha-rotation", seq=SEQ, seed=SEED)
def queries_and_keys_may_be_rotated_together(subject: Subject, seq: int, seed: int) -> None:
    """Require that a rotation R after W_Q and W_K leaves q·k of every head as it is: (qR)·(kR) = q·k."""
    arguments = draw_self_attention(subject, seed, 1, seq, width=len(ROTATION))
    # A declaration may leave biases out of the call.
    plain = {name: array for name, array in arguments.params.items() if name in ("w_q", "b_q", "w_k", "b_k")}
    heads = {name: array.reshape(*array.shape[:-1], -1, len(ROTATION)) for name, array in plain.items()}
    # 64ths of at most 1 become 128ths of at most 2, which bfloat16's eight bits hold.
    rotated = {name: (array @ ROTATION).reshape(plain[name].shape) for name, array in heads.items()}
    claim = "the output changes when queries and keys of each head are rotated together"
    relations.gives_the_same(subject, arguments, with_params(arguments, **rotated), claim)


@holds("mha-linear", seq=SEQ, seed=SEED)
def linear_in_the_values(subject: Subject, seq: int, seed: int) -> None:
    """Require that halfway between two values the output is halfway between their outputs."""
    calls = [draw_self_attention(subject, s, 1, seq) for s in (seed, seed + 1)]
    # Halfway between 64ths of at most 2 are 128ths, which bfloat16's eight bits hold.
    one, other = (call.inputs["value"] for call in calls)
    placed = [with_inputs(calls[0], value=value) for value in (one, other, (one + other) / 2)]
    first, second, middle = (subject.output(call) for call in placed)
    bound = subject.bound(*placed)
    claim = "halfway between two values the output is not halfway between theirs: it is not linear in the values"
    subject.agree(middle, (first + second) / 2, bound, claim)


@holds("mha-head-order", seq=SEQ, seed=SEED)
def heads_may_change_places(subject: Subject, seq: int, seed: int) -> None:
    """Require that heads may change places together with their rows of W_O."""
    arguments = draw_self_attention(subject, seed, 1, seq, heads=3, width=2)
    relations.ignores_head_order(subject, arguments, MAPS, seed=seed)


@holds("mha-heads", seq=SEQ, seed=SEED)
def heads_do_not_mix(subject: Subject, seq: int, seed: int) -> None:
    """Require that the projections of a head do not matter if its rows of W_O are 0."""
    arguments, other = (draw_self_attention(subject, s, 1, seq) for s in (seed, seed + 1000))
    silent = np.arange(6) // 3 == seed % 2
    muted = with_params(arguments, w_o=np.where(silent[:, None], 0.0, arguments.params["w_o"]))
    changed = {
        name: np.where(silent, other.params[name], array) for name, array in arguments.params.items() if name in MAPS
    }
    claim = f"head {seed % 2} matters although its rows of w_o are 0"
    relations.gives_the_same(subject, muted, with_params(muted, **changed), claim)
