"""Each mistake in the decoder-only model gives what its parts give when they are put together so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.reference_impl import DecoderOnlyModel, RMSNorm
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "language_model"]
IDS, PAD = torch.tensor([[0, 3, 5, 1], [2, 0, 4, 3]]), 0

MODEL = DecoderOnlyModel(7, 8, 4, 2, 5, 3, pad_id=PAD, dtype=torch.float64)
with torch.no_grad():
    for gain in (part.gamma for part in MODEL.modules() if isinstance(part, RMSNorm)):
        nn.init.uniform_(gain, 0.5, 1.5)


def run_layers(*order, factor=1.0, mask=(IDS != PAD)[:, None, None], after=lambda x: x):
    x = MODEL.table[IDS] * factor
    for index in order:
        x = after(MODEL.layers[index](x, mask).output)
    return x


LAST = MODEL.norm(run_layers(0, 1, 2))
WRITTEN = {
    "lm-final-norm-missing": run_layers(0, 1, 2) @ MODEL.w_vocab,
    "lm-final-norm-each-layer": run_layers(0, 1, 2, after=MODEL.norm) @ MODEL.w_vocab,
    "lm-layers-reversed": MODEL.norm(run_layers(2, 1, 0)) @ MODEL.w_vocab,
    "lm-output-tied-anyway": LAST @ MODEL.table.T,
    "lm-padding-ignored": MODEL.norm(run_layers(0, 1, 2, mask=None)) @ MODEL.w_vocab,
    "lm-embedding-scaled-twice": MODEL.norm(run_layers(0, 1, 2, factor=8)) @ MODEL.w_vocab,
    "lm-softmax-in-model": (LAST @ MODEL.w_vocab).softmax(-1),
}


def run(made):
    params = {name: p.detach().numpy() for name, p in MODEL.named_parameters()}
    sizes = {"num_heads": 4, "num_kv_heads": 2, "num_layers": 3, "pad_id": PAD}
    return made.decoder_only_model(IDS.numpy(), params=params, **sizes)["logits"]


def test_every_mistake_of_the_catalogue_is_made(spec):
    assert {m.id for m in spec.mistakes.values() if m.component == "decoder_only_model"} == {*MISTAKES} == {*WRITTEN}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_model_is_that_of_code_with_the_mistake(mistake):
    logits = run(implementations()[mistake].make())
    np.testing.assert_allclose(logits, WRITTEN[mistake].detach(), rtol=0, atol=1e-10)
    assert np.abs(logits - MODEL(IDS).logits.detach().numpy()).max() > 1e-3


def test_the_factor_of_the_embedding_is_taken_once():
    made = build_textbook(OPTIONS["embedding_scale", "sqrt_d_model"])
    expected = MODEL.norm(run_layers(0, 1, 2, factor=8**0.5)) @ MODEL.w_vocab
    np.testing.assert_allclose(run(made), expected.detach(), rtol=0, atol=1e-10)
