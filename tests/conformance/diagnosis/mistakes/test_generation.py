"""Each mistake in greedy generation gives what PyTorch code with it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.reference_impl import DecoderOnlyModel, RMSNorm, generate

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "generation"]
#: The first prompt ends after two new tokens, and the second one not before the limit.
PROMPTS = torch.tensor([[3, 5, 2], [6, 1, 4]])
PAD, LIMIT = 9, 6
SIZES = {"num_heads": 4, "num_kv_heads": 2, "num_layers": 2}

torch.manual_seed(6)
MODEL = DecoderOnlyModel(10, 16, 4, 2, 5, 2, pad_id=PAD, dtype=torch.float64)
with torch.no_grad():
    for gain in (part.gamma for part in MODEL.modules() if isinstance(part, RMSNorm)):
        nn.init.uniform_(gain, 0.5, 1.5)
    MODEL.w_vocab[:, PAD] = 0  # never the largest logit


@torch.no_grad()
def write(prompt, count, read=lambda prompt, new: [*prompt, *new], row=-1):
    """Return the tokens after one prompt, by code that is no part of the reference."""
    new: list[int] = []
    for _ in range(count):
        logits = MODEL(torch.tensor([read(prompt, new)])).logits[0]
        new.append(int(logits[row if len(logits) >= -row else 0].argmax()))
    return new


UNENDED = [write(prompt, 12) for prompt in PROMPTS.tolist()]
END = UNENDED[0][1]


def cut(tokens, limit=LIMIT):
    """Return the tokens up to the first END."""
    tokens = tokens[:limit]
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


def fill(rows, fill=PAD):
    return [[*row, *[fill] * (LIMIT - len(row))][:LIMIT] for row in rows]


def positions_restart(prompt):
    """Return new tokens of a model whose cache is right and whose positions begin at 0 in each call."""
    arange = torch.arange

    def restart(*ends, **like):
        return arange(ends[1] - ends[0], **like) if len(ends) == 2 else arange(*ends, **like)

    new: list[int] = []
    state, ids = None, torch.tensor([prompt])
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch, "arange", restart)
        for _ in range(LIMIT):
            result, state = MODEL.extend(ids, state)
            new.append(int(result.logits[0, -1].argmax()))
            ids = torch.tensor([new[-1:]])
    return new


PROMPT_LISTS: Any = PROMPTS.tolist()
RIGHT = fill(map(cut, UNENDED))
WRITTEN = {
    "gen-not-appended": fill(cut(row[:1] * LIMIT) for row in UNENDED),
    "gen-cache-dropped": fill(cut(write(p, LIMIT, lambda p, new: new[-1:] or p)) for p in PROMPT_LISTS),
    "gen-positions-restart": fill(map(cut, map(positions_restart, PROMPT_LISTS))),
    "gen-first-row": fill(cut(write(p, LIMIT, row=0)) for p in PROMPT_LISTS),
    "gen-row-before-last": fill(cut(write(p, LIMIT, row=-2)) for p in PROMPT_LISTS),
    "gen-prompt-counted": fill(cut(row, LIMIT - 3) for row in UNENDED),
    "gen-one-too-few": fill(cut(row, LIMIT - 1) for row in UNENDED),
    "gen-no-end": fill(row[:LIMIT] for row in UNENDED),
    "gen-all-end-with-one": fill(cut(row)[:2] for row in UNENDED),
    "gen-goes-on-after-end": fill(row[: max(len(cut(other)) for other in UNENDED)] for row in UNENDED),
    "gen-end-dropped": fill([token for token in cut(row) if token != END] for row in UNENDED),
    "gen-prompt-returned": fill([*p, *cut(row)] for p, row in zip(PROMPT_LISTS, UNENDED, strict=True)),
    "gen-zeros-after-end": fill(map(cut, UNENDED), 0),
}
#: Those that these prompts do not show: no logits are equal here, and no prompt has the end.
APART = {"gen-last-of-equals", "gen-end-in-prompt"}


def run(adapter, prompts=PROMPTS, params=None, **limits):
    params = params or {name: p.detach().numpy() for name, p in MODEL.named_parameters()}
    limits = {"pad_id": PAD, "eos_id": END, "max_new_tokens": LIMIT, **limits}
    return adapter.generate(np.asarray(prompts), **SIZES, **limits, params=params)["new_ids"].tolist()


def made(mistake):
    return implementations()[mistake].make()


def test_every_mistake_of_the_catalogue_is_made(spec):
    written = {*WRITTEN, *APART}
    assert {m.id for m in spec.mistakes.values() if m.component == "generate"} == {*MISTAKES} == written


def test_samples_end_at_different_places_and_the_textbook_is_right():
    assert [len(cut(row)) for row in UNENDED] == [2, LIMIT]
    assert run(build_textbook()) == RIGHT == generate(MODEL, PROMPTS, eos_id=END, max_new_tokens=LIMIT).tolist()


@pytest.mark.parametrize("mistake", WRITTEN)
def test_the_tokens_are_those_of_code_with_the_mistake(mistake):
    assert run(made(mistake)) == WRITTEN[mistake] != RIGHT


def test_an_end_in_the_prompt_stops_after_one_token():
    prompts = [[3, END, 2], [6, 1, END]]
    first = [row[:1] for row in run(build_textbook(), prompts)]
    assert run(made("gen-end-in-prompt"), prompts) == fill(first) != run(build_textbook(), prompts)


def test_among_equals_the_highest_id_is_taken():
    params = {name: p.detach().numpy() for name, p in MODEL.named_parameters()}
    params["w_vocab"] = np.zeros_like(params["w_vocab"])
    limits = {"params": params, "eos_id": 4, "pad_id": None}
    assert run(made("gen-last-of-equals"), **limits) == [[9] * LIMIT] * 2
    assert run(build_textbook(), **limits) == [[0] * LIMIT] * 2
