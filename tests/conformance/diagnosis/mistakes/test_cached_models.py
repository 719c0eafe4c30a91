"""Each mistake in a model with caches gives what PyTorch code with it gives, and shared ones are made in models too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.reference_impl import DecoderOnlyModel, RMSNorm, merge_heads, rotary_embedding, split_heads

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "cached_models"]
IDS = torch.tensor([[0, 3, 5, 1, 6, 2], [2, 0, 4, 3, 3, 5]])
#: The calls: a prompt, a chunk, a step.
CUTS = ((0, 3), (3, 5), (5, 6))

MODEL = DecoderOnlyModel(7, 16, 4, 2, 5, 3, dtype=torch.float64)
LAYERS: Any = MODEL.layers
with torch.no_grad():
    for gain in (part.gamma for part in MODEL.modules() if isinstance(part, RMSNorm)):
        nn.init.uniform_(gain, 0.5, 1.5)


def repeat(heads, times):
    return heads.repeat_interleave(times, dim=1)


def decode(cuts=CUTS, start=lambda n: n, again=lambda key: key, choose=lambda index: index, read=lambda heads: heads):
    """Return the logits of some calls that follow each other, by code that is no part of the reference."""
    caches: list[Any] = [None] * 3
    logits = []
    for begin, end in cuts:
        x, old = MODEL.table[IDS[:, begin:end]], [*caches]
        for index, layer in enumerate(LAYERS):
            h = layer.norm_1(x)
            q, k, v = (split_heads(h @ w, n) for w, n in ((layer.w_q, 4), (layer.w_k, 2), (layer.w_v, 2)))
            cache = old[choose(index)]
            so_far = 0 if cache is None else cache[0].shape[2]
            at = start(so_far) + torch.arange(end - begin)
            q, k = rotary_embedding(q, at), rotary_embedding(k, at)
            if cache is not None:
                k, v = torch.cat([again(read(cache[0])), k], 2), torch.cat([read(cache[1]), v], 2)
            caches[index] = k, v
            seen = torch.ones(end - begin, k.shape[2]).tril(so_far) > 0
            attended = scaled_dot_product_attention(q, repeat(k, 2), repeat(v, 2), seen)
            x = x + merge_heads(attended) @ layer.w_o
            x = x + layer.feed_forward(layer.norm_2(x)).output
        logits.append(MODEL.norm(x) @ MODEL.w_vocab)
    return torch.cat(logits, dim=1).detach()


WRITTEN = {
    "lmc-offset-missing": decode(start=lambda n: 0),
    "lmc-offset-doubled": decode(start=lambda n: 2 * n),
    "lmc-rotated-twice": decode(again=lambda key: rotary_embedding(key, torch.arange(key.shape[2]))),
    "lmc-one-cache": decode(choose=lambda index: 0),
    "lmc-heads-expanded": decode(read=lambda heads: repeat(heads, 2)[:, :2]),
}


def run(adapter, cuts=CUTS, after=(0, 1, 2)):
    """Return the logits of the calls of an adapter."""
    params = {name: p.detach().numpy() for name, p in MODEL.named_parameters()}
    states, logits = [None], []
    for (begin, end), before in zip(cuts, after, strict=True):
        sizes = {"num_heads": 4, "num_kv_heads": 2, "num_layers": 3, "params": params}
        called = adapter.cached_model(IDS[:, begin:end].numpy(), states[before], **sizes)
        states.append(called["state"])
        logits.append(called["logits"])
    return np.concatenate(logits, axis=1)


def made(mistake):
    return implementations()[mistake].make()


def test_every_mistake_of_the_catalogue_is_made(spec):
    assert {m.id for m in spec.mistakes.values() if m.component == "cached_model"} == {*MISTAKES} == {*WRITTEN}


def test_the_textbook_gives_the_logits_of_the_model_without_a_cache():
    logits = run(build_textbook())
    np.testing.assert_allclose(logits, MODEL(IDS).logits.detach(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(logits, decode(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mistake", WRITTEN)
def test_the_logits_are_those_of_code_with_the_mistake(mistake):
    logits = run(made(mistake))
    np.testing.assert_allclose(logits, WRITTEN[mistake], rtol=0, atol=1e-12)
    assert np.abs(logits - run(build_textbook())).max() > 1e-3


def test_a_model_whose_cache_is_not_reset_continues_its_last_call():
    np.testing.assert_allclose(run(made("cache-not-reset"), after=(0, 0, 0)), decode(), rtol=0, atol=1e-12)


def test_a_model_that_keeps_only_its_prompt_loses_later_tokens():
    logits = run(made("cache-append-lost"))
    np.testing.assert_allclose(logits, run(build_textbook(), after=(0, 1, 1)), rtol=0, atol=1e-12)


def test_continuations_of_a_state_that_is_changed_in_place_see_each_other():
    cuts = ((0, 3), (3, 5), (5, 6))
    logits = run(made("cache-prompt-mutated"), cuts, (0, 1, 1))
    np.testing.assert_allclose(logits, run(build_textbook(), cuts), rtol=0, atol=1e-12)
