"""Every property catches what it is there for, shows a small input, and accuses nobody else."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from goldformer.adapters import Adapter, find_adapter, pretend_device
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.properties.registry import _REGISTRY, components_of, load_properties
from goldformer.conformance.reports.text import explain_verdict
from goldformer.spec.formulas.attention import (
    drop_weights,
    padding_mask,
    scaled_dot_product_attention,
    softmax,
    sum_values,
    weigh_keys,
)
from goldformer.spec.formulas.backward import move_weight, single_head_attention_step, weight_gradients
from goldformer.spec.formulas.cached import see_cached
from goldformer.spec.formulas.cached_model import continue_model
from goldformer.spec.formulas.decoding import (
    Sentence,
    decoder_input,
    extend_beam,
    has_ended,
    next_beam,
    rank_sentences,
    sentence_score,
)
from goldformer.spec.formulas.distance import bias_distance, window_length
from goldformer.spec.formulas.embedding import encode_positions, positional_encoding
from goldformer.spec.formulas.experts import add_experts, weigh_experts
from goldformer.spec.formulas.gated import gate_activation, gated_feed_forward, join_branches
from goldformer.spec.formulas.grouped import grouped_query_attention
from goldformer.spec.formulas.layers import channel_mean, decoder_layer, feed_forward
from goldformer.spec.formulas.losses import count_targets, kl_terms
from goldformer.spec.formulas.randomness import draw_dropout_mask, drop_elements, dropout, scale_up, xavier_uniform
from goldformer.spec.formulas.rms import mean_square, rms_divisor
from goldformer.spec.formulas.rope import turning_positions
from goldformer.spec.formulas.sampling import token_filter
from goldformer.spec.formulas.steps import around as replacement_around
from goldformer.spec.formulas.steps import replacing
from goldformer.spec.formulas.targets import spread_smoothing_mass
from goldformer.spec.formulas.transformer import source_mask, target_mask
from spoiled import spoil

ATTENTION = "scaled_dot_product_attention"


# Each is wrong in one way, and keeps every shape.


@spoil(instead_of=softmax)
def not_normalised(scores):
    return np.exp(scores - scores.max(-1, keepdims=True)) / 2


@spoil(instead_of=softmax)
def no_maximum_and_an_epsilon(scores):
    powers = np.exp(scores)
    return powers / (powers.sum(-1, keepdims=True) + 1e-3)


@spoil(around=weigh_keys)
def keeps_the_first_key_apart(original, scaled, mask):
    scaled = scaled + 0
    scaled[..., 0] += 1
    return original(scaled, mask)


@spoil(around=sum_values)
def shifted_values(original, weights, value):
    return original(weights, value) + 1


@spoil(around=sum_values)
def sees_one_ahead(original, weights, value):
    """Blends the last row in, whatever the mask."""

    return original(weights, value) + value[..., -1:, :] / 64


@spoil(around=positional_encoding)
def encoding_by_sample(original, x):
    sample = np.arange(len(x), dtype=x.dtype)[:, None, None]
    return original(x) + sample / 64


@spoil(instead_of=encode_positions)
def no_encoding(x):
    return np.zeros_like(x)


@spoil(around=scaled_dot_product_attention)
def lean_towards_early_queries(original, query, key, value, mask=None):
    attended = original(query, key, value, mask)
    position = np.arange(query.shape[-2], dtype=query.dtype)[:, None]
    return attended | {"output": attended["output"] + position / 64}


@spoil(around=feed_forward)
def feeds_the_mean(original, x, *, params):
    return original(x + x.mean(axis=1, keepdims=True), params=params)


@spoil(around=gated_feed_forward)
def gates_the_mean(original, x, *, params):
    return original(x + x.mean(axis=1, keepdims=True), params=params)


@spoil(around=join_branches)
def bounds_the_product(original, gate, up):
    return np.clip(original(gate, up), -1, 1)


@spoil(around=gate_activation)
def leaks_at_zero(original, gate):
    return original(gate) + 0.5


@spoil(instead_of=channel_mean)
def norm_over_the_batch(x):
    return x.mean(axis=(0, 1), keepdims=True)


@spoil(instead_of=mean_square)
def square_over_the_batch(row):
    return np.square(row).mean(axis=(0, 1), keepdims=True)


@spoil(around=rms_divisor)
def bounded_divisor(original, square):
    return np.minimum(original(square), 4)


@spoil(around=turning_positions)
def even_positions(original, positions):
    return np.where(positions > 300, positions - positions % 2, original(positions))


@spoil(around=bias_distance)
def grows_with_the_square(original, q_seq, kv_seq):
    return original(q_seq, kv_seq) ** 2


@spoil(around=window_length)
def rounds_the_window(original, window):
    return original(window) // 2 * 2


@spoil(around=grouped_query_attention)
def lean_towards_early_heads(original, query, key, value, mask=None, **rest):
    attended = original(query, key, value, mask, **rest)
    head = np.arange(query.shape[1], dtype=query.dtype)[:, None, None]
    return attended | {"output": attended["output"] + head / 64}


@spoil(around=token_filter)
def dislikes_token_0(original, logits, previous=None, **settings):
    probabilities = original(logits, previous, **settings)["probabilities"]
    return {"probabilities": np.where(np.arange(probabilities.shape[-1]) == 0, probabilities / 2, probabilities)}


@spoil(around=see_cached)
def sees_fewer_in_a_chunk(original, new, so_far):
    seen = original(new, so_far)
    seen[:, 0] &= new != 2  # a chunk of two tokens loses the first key
    return seen


@spoil(around=continue_model)
def halves_the_logits_of_calls(original, ids, state=None, **model):
    called = original(ids, state, **model)
    return called | {"logits": called["logits"] / 2}


@spoil(around=weigh_experts)
def dislikes_expert_0(original, logits, is_chosen):
    weights = original(logits, is_chosen)
    return np.where(np.arange(weights.shape[-1]) == 0, weights / 2, weights)


@spoil(around=add_experts)
def halves_expert_0(original, x, weights, params):
    return original(x, np.where(np.arange(weights.shape[-1]) == 0, weights / 2, weights), params)


@spoil(around=decoder_layer)
def ignores_the_memory(original, x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    return original(x, 0 * memory, self_mask, memory_mask, num_heads=num_heads, params=params)


@spoil(instead_of=target_mask)
def padding_replaces_causal(target, pad_id):
    return padding_mask(target, pad_id=pad_id)


@spoil(instead_of=source_mask)
def forgets_source_padding(source, pad_id):
    return None


@spoil(instead_of=spread_smoothing_mass)
def shares_nothing(target, smoothing):
    return 0 * target


@spoil(instead_of=count_targets)
def counts_padding(counted):
    return counted.size


@spoil(around=kl_terms)
def reversed_terms(original, target, log_q):
    return -original(target, log_q)


@spoil(around=xavier_uniform)
def one_seed_for_all(original, like, *, seed):
    return original(like, seed=7)


@spoil(instead_of=scale_up)
def doubles_what_is_kept(x, rate):
    return 2 * x


@spoil(around=drop_elements)
def forgets_the_seed(original, x, name, rate, seed):
    return original(x, name, rate, None)


@spoil(around=draw_dropout_mask)
def one_mask_for_all_samples(original, shape, rate, random):
    return np.broadcast_to(original(shape[1:], rate, random), shape)


@spoil(around=dropout)
def scaled_in_evaluation(original, x, *, rate, training, seed):
    given = original(x, rate=rate, training=training, seed=seed)
    return given if training else given * (1 - rate)


@spoil(around=scaled_dot_product_attention)
def drops_channels_of_the_output(original, query, key, value, mask=None, *, dropout_rate=None, seed=None):
    attended = original(query, key, value, mask)
    rate = dropout_rate or 0
    return attended | {"output": drop_elements(attended["output"], "dropout_rate", rate, seed)}


@spoil(around=decoder_input)
def reads_the_last_word_alone(original, sentence, task):
    return original(sentence, task)[-1:]


@spoil(instead_of=has_ended)
def goes_on_after_the_end(sentence, task):
    return False


@spoil(around=extend_beam)
def begins_with_copies(original, source, sample, beam, task):
    return original(source, sample, beam * task.beam_size if beam == [Sentence()] else beam, task)


@spoil(instead_of=has_ended)
def asks_before_each_step(sentence, task):
    return (task.bos_id, *sentence.words)[-1] == task.eos_id


@spoil(instead_of=sentence_score)
def compares_the_last_word(sentence):
    return sentence.word_scores[-1]


@spoil(instead_of=next_beam)
def keeps_the_worst(beam, grown, task):
    return rank_sentences([s for own in grown for s in own])[-task.beam_size :]


@spoil(instead_of=move_weight)
def climbs(weight, gradient, learning_rate):
    return weight + learning_rate * gradient


@spoil(around=single_head_attention_step)
def never_clears_gradients(original, *arrays, **rest):
    earlier = {}

    def add(weight_gradients, x, projected):
        earlier.update({n: g + earlier.get(n, 0) for n, g in weight_gradients(x, projected).items()})
        return dict(earlier)

    with replacing({weight_gradients: replacement_around(add)}):
        return original(*arrays, **rest)


ForgetsTheMask = implementations()["mask-not-inplace"].make
SoftmaxOverTheBatch = implementations()["softmax-batch-axis"].make
SoftmaxOverAll = implementations()["softmax-whole-array"].make
CosineExponent = implementations()["pe-cos-exp"].make
ActivatesTheProjections = implementations()["qkv-relu"].make
SharesTheFirstHead = implementations()["head-shared-w"].make
InterleavesHeads = implementations()["head-interleaved"].make

MEMORY = {"memory-around", "same-storage", "own-results", "new-memory"}
#: The first is tried below, the next in test_repeated_calls.py, those of memory in test_memory.py.
FOR_EVERY_COMPONENT = {"device-hygiene", "repeat-calls", "no-memory", "memory-layout", *MEMORY}
PERMUTED = r"with the tokens in the order \[1, 0\], the rows of the output do not come in that order"
#: By property: who breaks it, and what is said of that.
CAUGHT: dict[str, tuple[Any, str]] = {
    "sm-simplex": (not_normalised, "the weights of a row do not sum to 1"),
    "sm-shift": (no_maximum_and_an_epsilon, "softmax\\(x \\+ -?\\d+\\) differs from softmax\\(x\\)"),
    "sdpa-simplex": (shifted_values, "an output lies outside the values it averages"),
    "sdpa-key-order": (
        keeps_the_first_key_apart,
        "the output changes when the rows of key and value come in the order \\[.*\\]",
    ),
    "sdpa-key-shift": (
        implementations()["mask-multiply-zero"].make,
        r"adding \[.*\] to every key changes the output",
    ),
    "sdpa-hidden-gradient": (
        ForgetsTheMask,
        "the gradient of the output up to position 0 by later rows of (key|value) is not 0",
    ),
    "sdpa-causality": (
        ForgetsTheMask,
        r"the output up to position 0 changes when later rows of key and value are replaced",
    ),
    "sdpa-padding": (
        ForgetsTheMask,
        r"the output changes when what the mask hides is replaced: the samples keep \[1, 2\] tokens",
    ),
    "sdpa-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "pe-batch": (encoding_by_sample, "two samples that are equal get different encodings"),
    "pe-shift-is-rotation": (
        CosineExponent,
        "row pos \\+ (\\d) is not row pos with each pair of sine and cosine turned by the angle of row \\1",
    ),
    "pe-rows-differ": (implementations()["pe-single-row"].make, "positions \\d+ and \\d+ have the same row"),
    "pe-breaks-symmetry": (no_encoding, "with the encoding added, permuting the tokens still only permutes the output"),
    "mha-permutation": (lean_towards_early_queries, PERMUTED),
    "mha-causality": (
        sees_one_ahead,
        r"the output up to position 0 changes when later rows of query, key and value are replaced",
    ),
    "mha-hidden-tokens": (
        ForgetsTheMask,
        r"the output changes when what the mask hides is replaced: the samples keep \[1, 2\] tokens",
    ),
    "mha-rotation": (
        ActivatesTheProjections,
        "the output changes when queries and keys of each head are rotated together",
    ),
    "mha-linear": (
        ActivatesTheProjections,
        "halfway between two values the output is not halfway between theirs: it is not linear in the values",
    ),
    "mha-head-order": (
        SharesTheFirstHead,
        r"the output changes when the heads, with their rows of w_o, come in the order \[\d, \d, \d\]",
    ),
    "mha-heads": (InterleavesHeads, "head [01] matters although its rows of w_o are 0"),
    "mha-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "fmha-permutation": (
        lean_towards_early_queries,
        PERMUTED,
    ),
    "fmha-causality": (sees_one_ahead, r"the output up to position 0 changes when later rows of x are replaced"),
    "fmha-head-order": (
        implementations()["qkv-layout"].make,
        r"the output changes when the heads, with their rows of w_o, come in the order \[\d, \d, \d\]",
    ),
    "enc-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "dec-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "out-batch": (SoftmaxOverAll, "a sample gives something else in a batch than by itself"),
    "fmha-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "ffn-positions": (feeds_the_mean, r"the output up to position 0 changes when later rows of x are replaced"),
    "glu-positions": (gates_the_mean, r"the output up to position 0 changes when later rows of x are replaced"),
    "glu-linear-in-up": (bounds_the_product, r"when up is multiplied by -?[0-9.]+, the output is not"),
    "glu-gate-of-zero": (leaks_at_zero, "with a gate of 0, the output is not b_down"),
    "ln-rows": (norm_over_the_batch, "a row gives something else when other rows are next to it"),
    "rms-rows": (square_over_the_batch, "a row gives something else when other rows are next to it"),
    "gqa-expanded": (
        implementations()["gqa-values-tiled"].make,
        r"the output changes when each query head is given its own copy of head \[[\d, ]+\] of the keys",
    ),
    "gqa-query-order": (
        lean_towards_early_heads,
        r"with the query heads of one group in the order \[[\d, ]+\], the outputs do not come in that order",
    ),
    "gqa-key-order": (
        keeps_the_first_key_apart,
        r"the output changes when the rows of key and value come in the order \[[\d, ]+\]",
    ),
    "gqa-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "win-one-more": (rounds_the_window, r"a window of \d does not show what one of \d shows and the key before that"),
    "alibi-nearer": (
        grows_with_the_square,
        "one position nearer does not add the same in every row"
        "|a key nearer to the query has no larger bias than the one before it",
    ),
    "pos-words": (
        implementations()["position-ids-padding-subtracted"].make,
        "the words of a sample do not have the positions 0, 1, 2 …",
    ),
    "cache-cut": (
        sees_fewer_in_a_chunk,
        r"calls with \[[\d, ]+\] new tokens give something else than calls with \[[\d, ]+\]",
    ),
    "cache-later": (
        implementations()["cache-prefill-unmasked"].make,
        r"the output up to position \d+ changes when later rows of query, key and value are replaced",
    ),
    "cache-turns": (
        implementations()["cache-not-reset"].make,
        "a sequence gives something else while calls of another one take turns with its own",
    ),
    "cache-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "dol-causality": (sees_one_ahead, r"the output up to position 0 changes when later rows of x are replaced"),
    "dol-expanded": (
        implementations()["gqa-values-tiled"].make,
        r"the output changes when each query head is given its own copy of head \[[\d, ]+\] of the keys",
    ),
    "dol-head-order": (
        implementations()["block-turned-before-split"].make,
        r"the query heads, with their weights and keys, come in the order \[[\d, ]+\]",
    ),
    "dol-residual": (
        implementations()["block-residual-normed"].make,
        "the output is not the input although the blocks add 0 to it",
    ),
    "dol-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "dom-causality": (sees_one_ahead, "the logits up to position 0 change when later words are replaced"),
    "dom-batch": (SoftmaxOverTheBatch, "a sample gives something else in a batch than by itself"),
    "lmc-cut": (
        implementations()["lmc-offset-doubled"].make,
        r"calls with \[[\d, ]+\] new words give something else than calls with \[[\d, ]+\]",
    ),
    "lmc-uncached": (
        halves_the_logits_of_calls,
        r"calls with \[[\d, ]+\] new words give something else than decoder_only_model gives for all of them",
    ),
    "gen-continued": (
        implementations()["gen-one-too-few"].make,
        r"\d new tokens are not the first of \d",
    ),
    "gen-batch": (
        implementations()["gen-all-end-with-one"].make,
        r"the tokens of samples change when \d padding stands before a prompt and both are in one call",
    ),
    "gen-read": (
        implementations()["gen-row-before-last"].make,
        r"the model that reads \[[\d, ]+\] after its prompt finds another token more probable than one of these",
    ),
    "rms-scale": (bounded_divisor, "a row times -?8 does not give what the row gives, up to eps and the sign"),
    "rope-relative": (even_positions, r"adding \d+ to all positions changes the scores of turned queries and keys"),
    "rope-length": (implementations()["rope-minus-missing"].make, "a pair of channels does not keep its length"),
    "rope-zero": (
        implementations()["rope-offset-missing"].make,
        "a token at position 0 does not stay as it is",
    ),
    "sample-permutation": (dislikes_token_0, "permuting the vocabulary does not permute the probabilities"),
    "moe-permutation": (dislikes_expert_0, "permuting the experts does not permute their weights"),
    "moe-ffn-permutation": (halves_expert_0, "permuting the experts and the columns of w_router changes the output"),
    "enc-permutation": (lean_towards_early_queries, PERMUTED),
    "dec-causality": (sees_one_ahead, r"the output up to position 0 changes when later rows of x are replaced"),
    "dec-memory": (ignores_the_memory, "another memory gives the same output: the layer ignores it"),
    "model-causality": (
        padding_replaces_causal,
        "the logits up to position 0 change when later words of the target are replaced",
    ),
    "encoder-batch": (
        ForgetsTheMask,
        "the output of a sample changes when 1 padding follows it and a longer sample is next to it",
    ),
    "model-prefix": (
        implementations()["scale-seq-len"].make,
        "the logits up to position 0 change when the target ends there",
    ),
    "model-padding": (
        forgets_source_padding,
        "the logits of a sample change when \\d padding follows it and a longer sample is next to it",
    ),
    "out-simplex": (not_normalised, "the words' probabilities do not sum to 1"),
    "ls-sums-to-one": (shares_nothing, "a smoothed row does not sum to 1"),
    "ce-padding": (counts_padding, "\\d positions of padding change the loss"),
    "kl-sign": (reversed_terms, "the divergence is negative"),
    "xavier-seed": (one_seed_for_all, "seeds 0 and 1 give the same weight"),
    "dropout-values": (doubles_what_is_kept, "an element is neither 0 nor x/\\(1 − rate\\)"),
    "dropout-seed": (forgets_the_seed, "the same seed drops other elements the second time"),
    "dropout-independence": (
        one_mask_for_all_samples,
        "elements are not dropped one by one: all samples lose the same ones at a rate of 0.5",
    ),
    "dropout-after-evaluation": (
        implementations()["dropout-sticky"].make,
        "after a call in evaluation mode nothing is dropped in training",
    ),
    "dropout-evaluation": (scaled_in_evaluation, "the output is not the input, although it is not training"),
    "sdpa-dropout": (
        drops_channels_of_the_output,
        "a weight is dropped for one channel of the value and kept for another",
    ),
    "greedy-teacher-forcing": (
        reads_the_last_word_alone,
        r"the model that reads \[\d, \d\] at once finds another word more probable than one of these"
        r"|the scores of \[\d, \d\] are not the log-probabilities that the model gives when it reads it at once",
    ),
    "greedy-after-the-end": (
        goes_on_after_the_end,
        r"\[.*(\d), \d\] goes on after \1, its eos_id, where 0, pad_id, must stand",
    ),
    "greedy-end-in-a-batch": (
        implementations()["greedy-end-forgotten"].make,
        r"\[.*(\d), 0, .*\] goes on after \1, its eos_id, where 0, pad_id, must stand",
    ),
    "greedy-batch": (
        implementations()["batch-eos"].make,
        "the (sentence|score) of a sample changes when 1 padding follows its source and a longer one is next to it",
    ),
    "beam-sentences": (begins_with_copies, r"the same sentence is returned twice: \[\[(.*)\], \[\1\]\]"),
    "beam-teacher-forcing": (
        compares_the_last_word,
        r"the model that reads \[.*\] at once finds a later one more probable than an earlier one"
        r"|the scores of \[.*\] are not those of the model that reads them at once",
    ),
    "beam-of-one": (keeps_the_worst, "a beam of one gives another sentence than greedy decoding"),
    "beam-batch": (
        implementations()["beam-batch-index"].make,
        "the (sentences|scores) of a sample change when 1 padding follows its source and a longer one is next to it",
    ),
    "sha-permutation": (lean_towards_early_queries, PERMUTED),
    "sha-hidden-gradient": (
        implementations()["causal-missing"].make,
        "the gradient of the output up to position 0 by later rows of x is not 0",
    ),
    "sha-causality": (sees_one_ahead, r"the output up to position 0 changes when later rows of x are replaced"),
    "shas-gradient": (
        climbs,
        "w_[qkv] is not the weight less learning_rate times its gradient by single_head_attention",
    ),
    "shas-one-by-one": (never_clears_gradients, "2 steps in one call give another \\w+ than 2 calls of one step"),
}


def functions_of(textbook, spec):
    """The contents of an adapter of a textbook: its components, and their backward passes."""
    names = {name for component in spec.contracts for name in (component, f"{component}_gradient")}
    return {name: getattr(textbook, name) for name in names if hasattr(textbook, name)}


@pytest.fixture
def judge(spec):
    """The verdict of one property for one component of an adapter of some functions."""

    def check(property_, component, functions, *, arrays="torch", dtype="float32", strict=False):
        thing = SimpleNamespace(ARRAYS=arrays, NAME="mine", **functions)
        bench = Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu", Policy(strict=strict))
        return check_property(spec.properties[property_], component, bench)

    return check


def test_every_property_has_someone_who_breaks_it(spec):
    load_properties(spec)
    assert set(spec.properties) == set(_REGISTRY) == {*CAUGHT, *FOR_EVERY_COMPONENT, "sha-message"}


@pytest.mark.parametrize(
    ("missing", "misshapen", "named"),
    [
        ("Wq is null", "Wk must be 2x2", True),
        ("'w_q'", "w_k: shape (2, 3) is not (d_model, d_model)", True),
        ("a weight is missing", "Wk must be 2x2", False),
        ("row query is missing", "Wk must be 2x2", False),
        ("Wq is null", "Wk has a wrong shape", False),
        ("Wq is null", "the weight must be 2x2", False),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_the_message_about_a_weight_is_advised_to_name_it(missing, misshapen, named, strict, judge):
    def single_head_attention(x, *, params, causal):
        raise ValueError(misshapen if "w_q" in params else missing)

    functions = {"single_head_attention": single_head_attention}
    verdict = judge("sha-message", "single_head_attention", functions, arrays="numpy", strict=strict)
    departs = (Status.FAILED, "property") if strict else (Status.SKIPPED, "advice")
    assert (verdict.status, verdict.reason) == ((Status.PASSED, "") if named else departs)


def test_an_implementation_that_accepts_bad_weights_has_no_message(judge):
    functions = {"single_head_attention": lambda x, *, params, causal: x}
    verdict = judge("sha-message", "single_head_attention", functions, arrays="numpy")
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")


@pytest.mark.sample(8)
@pytest.mark.parametrize("property_", CAUGHT)
def test_a_property_catches_its_breaker_and_shows_a_small_input(property_, judge, spec):
    textbook, message = CAUGHT[property_]
    (component,) = components_of(spec.properties[property_], spec)
    verdict = judge(property_, component, functions_of(textbook(), spec), arrays="numpy")
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    assert re.fullmatch(message, verdict.message)
    assert re.match(r"smallest input: \w+=", verdict.detail)


@pytest.mark.parametrize(
    ("property_", "smallest"),
    [
        ("sdpa-batch", "smallest input: batch=2, q_seq=2, kv_seq=2, width=2, seed=0"),
        ("pe-shift-is-rotation", "smallest input: seq=4, d_model=2, shift=1"),
        ("sm-simplex", "smallest input: batch=1, n=1, seed=0, factor=1"),
    ],
)
def test_the_input_shown_is_the_smallest_that_fails(property_, smallest, judge, spec):
    textbook, _ = CAUGHT[property_]
    component = spec.properties[property_].component
    verdict = judge(property_, component, functions_of(textbook(), spec), arrays="numpy")
    assert verdict.detail == smallest
    assert f"  Input       {smallest}" in explain_verdict(Explained(verdict), spec)
    assert Verdict.from_json(verdict.as_json()) == verdict


@pytest.mark.parametrize("property_", ["beam-sentences", "beam-teacher-forcing", "beam-batch"])
def test_no_sentence_ends_by_the_word_that_begins_it(property_, judge, spec):
    functions = functions_of(asks_before_each_step(), spec)
    verdict = judge(property_, "beam_search", functions, arrays="numpy")
    assert verdict.status is Status.PASSED, verdict.message


def test_the_elements_that_violate_a_property_are_shown(judge):
    verdict = judge("sm-simplex", "softmax", {"softmax": not_normalised().softmax}, arrays="numpy")
    (difference,) = verdict.differences
    assert (difference.output, difference.first.index, difference.first.expected) == ("output", (0,), 1.0)
    assert difference.first.got == 0.5
    assert verdict.ratio == difference.ratio > 1000


def test_what_goes_wrong_only_at_times_is_a_violation_too(judge):
    # Once it ended in Hypothesis's own exception, and the command line in a traceback.
    made = implementations()["nondeterminism"].make()
    verdict = judge("sdpa-causality", ATTENTION, {ATTENTION: made.scaled_dot_product_attention}, arrays="numpy")
    assert (verdict.status, verdict.reason, verdict.example) == (Status.FAILED, "property", "")
    assert verdict.message.endswith(", but not every time: the same call gives different results")
    assert verdict.differences


def test_a_crash_that_comes_only_at_times_is_an_error_of_the_property(judge):
    calls = []

    def softmax(scores):
        calls.append(scores)
        if len(calls) == 3:
            raise MemoryError("for once")
        return build_textbook().softmax(scores)

    verdict = judge("sm-simplex", "softmax", {"softmax": softmax}, arrays="numpy")
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    assert verdict.message.startswith("raised MemoryError: for once")


def test_equal_results_that_are_not_finite_keep_no_property(judge):
    def softmax(scores):
        return np.full_like(scores, np.nan)

    verdict = judge("sm-shift", "softmax", {"softmax": softmax}, arrays="numpy")
    assert (verdict.status, verdict.message) == (Status.FAILED, "output is not finite, though all inputs are")
    (difference,) = verdict.differences
    assert (difference.wrong, difference.compared) == (1, 1)


def test_a_component_that_raises_is_an_error_of_the_property(judge):
    verdict = judge("sm-simplex", "softmax", {"softmax": lambda scores: 1 / 0})
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    assert verdict.message.startswith("raised ZeroDivisionError: division by zero")


def test_a_property_of_two_components_needs_both(judge):
    verdict = judge("pe-breaks-symmetry", "positional_encoding", {"positional_encoding": lambda x: x})
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-implemented")
    assert verdict.message == "mine has no scaled_dot_product_attention"


@pytest.mark.parametrize(("strict", "status"), [(False, Status.SKIPPED), (True, Status.FAILED)])
def test_what_is_not_implemented_fails_its_properties_only_if_strict(strict, status, judge):
    verdict = judge("sm-shift", "softmax", {}, strict=strict)
    assert (verdict.status, verdict.reason, verdict.message) == (status, "not-implemented", "mine has no softmax")


@pytest.mark.parametrize("strict", [False, True])
def test_a_property_of_which_rounding_decides_every_input_is_not_checkable(strict, judge, monkeypatch):
    monkeypatch.setattr("goldformer.conformance.properties.subject.least_margin", lambda dtype: math.inf)
    functions = {name: getattr(build_textbook(), name) for name in ("greedy_decode", "beam_search")}
    for property_, component in (("greedy-batch", "greedy_decode"), ("beam-of-one", "beam_search")):
        verdict = judge(property_, component, functions, arrays="numpy", strict=strict)
        assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
        assert verdict.message == "rounding to float32 decides what greedy_decode gives for the inputs drawn"


# Device hygiene


def attend(query, key, value, mask, scale):
    scores = query @ key.transpose(-1, -2) * scale
    scores = scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, -1) @ value


def scale_of_one_element_on_the_cpu(query, key, value, mask=None):
    return attend(query, key, value, mask, 1 / torch.sqrt(torch.FloatTensor([query.shape[-1]])))


def mask_on_the_cpu(query, key, value, mask=None):
    if mask is None:
        mask = torch.ones(query.shape[-2], key.shape[-2]).bool()
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


def mask_on_the_cpu_by_where(query, key, value, mask=None):
    everything = torch.ones(query.shape[-2], key.shape[-2]).bool()
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = torch.where(everything if mask is None else mask, scores, torch.full_like(scores, -torch.inf))
    return torch.softmax(scores, -1) @ value


def zeros_on_the_cpu(query, key, value, mask=None):
    output = attend(query, key, value, mask, query.shape[-1] ** -0.5)
    return output + torch.zeros(output.shape)


def result_made_anew_on_the_cpu(query, key, value, mask=None):
    output = attend(query, key, value, mask, query.shape[-1] ** -0.5)
    return output if output.device.type == "cpu" else torch.zeros(output.shape)


def weights_made_anew_on_the_cpu(query, key, value, mask=None):
    output = attend(query, key, value, mask, query.shape[-1] ** -0.5)
    return {"weights": torch.full((*query.shape[:-1], key.shape[-2]), 1.0), "output": output}


@pytest.fixture
def stand_in(monkeypatch):
    """Choose the device that stands in for a GPU: pretend, or meta where PyTorch refuses pretend."""

    def choose(device):
        why_not = pretend_device.register()
        if device == "meta":
            monkeypatch.setattr(pretend_device, "register", lambda: "refused")
        elif why_not is not None:
            pytest.skip(why_not)

    return choose


def embeds_ids_on_the_cpu(ids, *, params):
    table = params["table"]
    return torch.nn.functional.embedding(ids if ids.is_cpu else torch.zeros_like(ids, device="cpu"), table)


def test_an_embedding_of_ids_on_the_cpu_is_caught_by_the_pretend_device_alone(judge, stand_in):
    stand_in("pretend")
    verdict = judge("device-hygiene", "token_embedding", {"token_embedding": embeds_ids_on_the_cpu, **ON_CUDA})
    assert verdict.message.startswith(MIXES.format("a tensor of ids or positions"))
    assert "(indices of aten.embedding.default is on cpu)" in verdict.message
    stand_in("meta")
    assert (
        judge("device-hygiene", "token_embedding", {"token_embedding": embeds_ids_on_the_cpu}).status is Status.PASSED
    )


MIXES = "mixes devices: {} is on the CPU, although the inputs are not ("
TERM = "a constant or another term"
#: An adapter that says that it works on a GPU.
ON_CUDA = {"DEVICES": ("cpu", "cuda")}


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (scale_of_one_element_on_the_cpu, MIXES.format(TERM)),
        (mask_on_the_cpu, MIXES.format("a mask")),
        (mask_on_the_cpu_by_where, MIXES.format("a mask")),
        (zeros_on_the_cpu, MIXES.format(TERM)),
        (result_made_anew_on_the_cpu, "output is on cpu though the inputs are on "),
        (weights_made_anew_on_the_cpu, "weights is on cpu though the inputs are on "),
    ],
    ids=lambda value: getattr(value, "__name__", " "),
)
@pytest.mark.parametrize("device", ["meta", "pretend"])
def test_a_tensor_left_on_the_cpu_is_caught_without_a_gpu(function, says, device, judge, stand_in):
    stand_in(device)
    verdict = judge("device-hygiene", ATTENTION, {ATTENTION: function, **ON_CUDA})
    assert (verdict.status, verdict.reason) == (Status.FAILED, "property")
    # Right here, where nobody asks for a GPU.
    tolerated = judge("device-hygiene", ATTENTION, {ATTENTION: function})
    assert (tolerated.status, tolerated.reason, tolerated.is_tolerated) == (Status.SKIPPED, "gpu", True)
    assert tolerated.message == verdict.message
    assert judge("device-hygiene", ATTENTION, {ATTENTION: function}, strict=True).status is Status.FAILED
    if device == "meta" and says.startswith("mixes"):
        says = MIXES.format("a tensor")  # the meta device does not name the operand
    assert verdict.message.startswith(says)


def test_the_line_that_mixes_devices_is_told(judge):
    message = judge("device-hygiene", ATTENTION, {ATTENTION: zeros_on_the_cpu}).message
    line = zeros_on_the_cpu.__code__.co_firstlineno + 2
    assert f"({__file__}:{line}, zeros_on_the_cpu)" in message


def zero_dimensional_scale(query, key, value, mask=None):
    """A 0-d CPU tensor meets any device, as a number does: torch allows it."""
    return attend(query, key, value, mask, 1 / torch.sqrt(torch.tensor(float(query.shape[-1]))))


@pytest.mark.parametrize(
    "function",
    [zero_dimensional_scale, find_adapter],
    ids=["0-d scale", "reference"],
)
def test_what_follows_its_inputs_is_clean(function, judge, spec):
    if function is find_adapter:
        function = find_adapter("reference", spec).functions[ATTENTION]
    assert judge("device-hygiene", ATTENTION, {ATTENTION: function}).status is Status.PASSED


def asks_for_a_number(query, key, value, mask=None):
    assert query.abs().max().item() < 1e30
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


def branches_on_its_data(query, key, value, mask=None):
    if (query > 1e30).any():
        raise OverflowError("query: too large")
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


def goes_through_numpy(query, key, value, mask=None):
    scale = float(np.sqrt(query.detach().numpy().shape[-1]))
    return attend(query, key, value, mask, 1 / scale)


def goes_through_the_cpu(query, key, value, mask=None):
    return attend(query.cpu(), key.cpu(), value.cpu(), mask, query.shape[-1] ** -0.5)


def raises_in_its_own_words(query, key, value, mask=None):
    if query.device.type != "cpu":
        raise ValueError("no values")
    return attend(query, key, value, mask, query.shape[-1] ** -0.5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("function", "device"),
    [
        (asks_for_a_number, "meta"),
        (branches_on_its_data, "meta"),
        (goes_through_numpy, "meta"),
        (goes_through_numpy, "pretend"),
        (goes_through_the_cpu, "meta"),
        (raises_in_its_own_words, "meta"),
        (raises_in_its_own_words, "pretend"),
    ],
)
def test_code_that_looks_at_its_data_is_not_accused(function, device, strict, judge, stand_in):
    stand_in(device)
    verdict = judge("device-hygiene", ATTENTION, {ATTENTION: function}, strict=strict)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message.startswith(f"cannot run on the {device} device: ")


@pytest.mark.parametrize("function", [asks_for_a_number, branches_on_its_data])
def test_code_that_looks_at_its_data_runs_on_the_pretend_device(function, judge, stand_in):
    stand_in("pretend")
    assert judge("device-hygiene", ATTENTION, {ATTENTION: function}).status is Status.PASSED


def test_a_result_that_stays_on_the_cpu_is_caught_by_the_pretend_device(judge, stand_in):
    stand_in("pretend")
    verdict = judge("device-hygiene", ATTENTION, {ATTENTION: goes_through_the_cpu, **ON_CUDA})
    assert (verdict.status, verdict.message) == (Status.FAILED, "output is on cpu though the inputs are on pretend")


def test_a_path_with_cpu_and_meta_in_it_is_no_evidence(tmp_path, spec):
    path = tmp_path / "cpu" / "metaformer" / "pretend.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        'ARRAYS = "torch"\ndef softmax(scores):\n    if not scores.is_cpu:\n        raise ValueError("no values")\n'
        "    return scores.softmax(-1)\n",
        encoding="utf-8",
    )
    bench = Bench(spec, find_adapter(str(path), spec), "float32", "cpu")
    assert check_property(spec.properties["device-hygiene"], "softmax", bench).reason == "not-checkable"


@pytest.mark.parametrize("strict", [False, True])
def test_who_declares_the_cpu_alone_may_make_tensors_there(strict, judge):
    functions = {ATTENTION: zeros_on_the_cpu, "DEVICES": ("cpu",)}
    verdict = judge("device-hygiene", ATTENTION, functions, strict=strict)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message == "it runs only on cpu, as DEVICES declares"


@pytest.fixture
def called_on(monkeypatch):
    """Stand a CPU in for a CUDA device; return the devices on which arrays are made for calls."""
    library, called = LIBRARIES["torch"], []
    make, name_device = library.make, library.device

    def make_elsewhere(array, dtype, device):
        called.append(device)
        return make(array, dtype, "cpu" if device == "cuda" else device)

    def name_as_asked(array):
        return "cuda" if called[-1] == "cuda" else name_device(array)

    monkeypatch.setattr(library, "unavailable", lambda device: None)
    monkeypatch.setattr(library, "make", make_elsewhere)
    monkeypatch.setattr(library, "device", name_as_asked)
    return called


def judge_device_hygiene(spec, device, devices):
    """The verdict on a kernel that may read memory only of the devices it declares."""
    thing = SimpleNamespace(ARRAYS="torch", DEVICES=devices, scaled_dot_product_attention=zero_dimensional_scale)
    adapter = Adapter.from_object(thing, "kernel", spec)
    return check_property(spec.properties["device-hygiene"], ATTENTION, Bench(spec, adapter, "float32", device))


@pytest.mark.parametrize("register", [None, "refused"], ids=["pretend", "meta"])
def test_a_kernel_for_cuda_is_called_on_cuda_alone(register, called_on, spec, monkeypatch):
    monkeypatch.setattr(pretend_device, "register", lambda: register)
    verdict = judge_device_hygiene(spec, "cuda", ("cuda",))
    assert (verdict.status, verdict.message) == (Status.PASSED, "")
    assert set(called_on) == {"cuda"}


def test_on_a_gpu_nothing_is_called_on_a_device_without_memory(called_on, spec):
    assert judge_device_hygiene(spec, "cuda", ("cpu", "cuda")).status is Status.PASSED
    assert set(called_on) == {"cuda"}


@pytest.mark.parametrize("device", ["cpu", "pretend"])
def test_a_kernel_for_cuda_is_called_on_no_other_device(device, called_on, spec):
    verdict = judge_device_hygiene(spec, device, ("cuda",))
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "device")
    assert verdict.message == f"kernel works on cuda, not on {device}"
    assert not called_on


def test_an_mps_kernel_is_called_on_no_simulated_device(called_on, spec):
    verdict = judge_device_hygiene(spec, "cpu", ("cpu", "mps"))
    assert verdict.message == "it runs only on cpu, mps, as DEVICES declares"
    assert not called_on


@pytest.mark.parametrize("strict", [False, True])
def test_numpy_has_no_devices_to_mix(strict, judge):
    verdict = judge("device-hygiene", "softmax", {"softmax": build_textbook().softmax}, arrays="numpy", strict=strict)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message == "numpy has neither a pretend nor a meta device"


# What is drawn at random


@spoil(around=draw_dropout_mask)
def whole_tokens(original, shape, rate, random):
    return np.broadcast_to(original((*shape[:-1], 1), rate, random), shape)


@spoil(around=draw_dropout_mask)
def whole_channels(original, shape, rate, random):
    return np.broadcast_to(original((shape[0], 1, *shape[2:]), rate, random), shape)


@spoil(instead_of=drop_elements)
def drops_nothing(x, name, rate, seed):
    return x


@pytest.mark.parametrize(
    ("textbook", "said"),
    [
        (whole_tokens, "all channels lose the same ones"),
        (whole_channels, "all tokens lose the same ones"),
        (one_mask_for_all_samples, "all samples lose the same ones"),
        (drops_nothing, "at one place 0% of 70 samples lose theirs"),
    ],
)
def test_whatever_is_dropped_together_is_named(textbook, said, judge):
    functions = {"dropout": textbook().dropout}
    verdict = judge("dropout-independence", "dropout", functions, arrays="numpy")
    assert verdict.status is Status.FAILED
    assert verdict.message == f"elements are not dropped one by one: {said} at a rate of 0.5"


@spoil(around=drop_elements)
def same_seed_always(original, x, name, rate, seed):
    return original(x, name, rate, 7)


@pytest.mark.parametrize(
    ("property_", "textbook", "said"),
    [
        ("dropout-seed", same_seed_always, "seeds 0 and 1 drop the same elements"),
        ("sdpa-dropout", same_seed_always, "seeds 0 and 1 drop the same weights"),
        ("sdpa-dropout", forgets_the_seed, "the same seed drops other weights the second time"),
        ("sdpa-dropout", doubles_what_is_kept, None),
        ("sdpa-dropout", drops_nothing, "seeds 0 and 1 drop the same weights"),
        ("dropout-values", drops_nothing, "an element is neither 0 nor x/(1 − rate)"),
    ],
)
def test_the_seed_and_the_scale_are_told_apart(property_, textbook, said, judge):
    component = ATTENTION if property_ == "sdpa-dropout" else "dropout"
    verdict = judge(property_, component, {component: getattr(textbook(), component)}, arrays="numpy")
    # At the rate of one half that this property draws, twice is right.
    assert verdict.message == (said or "")


def test_weights_that_are_made_to_sum_to_one_again_are_caught(judge):
    @spoil(around=drop_weights)
    def renormalised(original, *given):
        kept = original(*given)
        return kept / np.maximum(kept.sum(-1, keepdims=True), 1e-9)

    verdict = judge("sdpa-dropout", ATTENTION, {ATTENTION: renormalised().scaled_dot_product_attention}, arrays="numpy")
    assert verdict.message == "a weight is neither 0 nor what it is without dropout, divided by 1 − rate"
