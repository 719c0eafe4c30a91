"""Greedy generation with a decoder-only model, one sample after the other.

For every token the whole model reads the prompt and all tokens so far, without a cache: LMC-1 says that one changes
nothing. So a sample that has ended waits for nobody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.decoder_only import decoder_only_model
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.sampling import note_gaps, rank_largest
from goldformer.spec.formulas.steps import step


@dataclass(frozen=True, slots=True)
class Generation:
    """The constants of a call; `model` holds the arguments of `decoder_only_model` other than the ids."""

    model: Mapping[str, Any]
    eos_id: int
    max_new_tokens: int

    @property
    def fill_id(self) -> int:
        """The id after the end: pad_id, or eos_id again without one (GEN-3)."""
        pad_id: int | None = self.model["pad_id"]
        return self.eos_id if pad_id is None else pad_id


@step
def generate(
    ids: Array,
    *,
    num_layers: int,
    pad_id: int | None = None,
    eos_id: int,
    max_new_tokens: int,
    params: Params,
    **settings: Any,
) -> dict[str, Array]:
    """Return new_ids, the tokens that follow each prompt, (batch, max_new_tokens)."""
    model = {**settings, "num_layers": num_layers, "pad_id": pad_id, "params": params}
    task = Generation(model, eos_id, max_new_tokens)
    rows = [fill_row(row, tokens, task) for row, tokens in zip(ids, generate_rows(ids, task), strict=True)]
    return {"new_ids": np.array(rows, dtype=np.int64)}


@step
def generate_rows(ids: Array, task: Generation) -> list[list[int]]:
    """Return the new tokens of each sample, which each end for themselves (GEN-4)."""
    return [generate_row(row, task) for row in ids]


@step
def generate_row(prompt: Array, task: Generation) -> list[int]:
    """Return the new tokens of one prompt, (seq,)."""
    tokens: list[int] = []
    while not (has_ended(prompt, tokens, task) or is_full(prompt, tokens, task)):
        tokens.append(choose_token(next_logits(prompt, tokens, task)))
    return tokens


@step
def next_logits(prompt: Array, tokens: Sequence[int], task: Generation) -> Array:
    """Return the logits of the token after the prompt and all tokens so far, (vocab,) (GEN-1)."""
    read = np.concatenate([prompt, np.array(tokens, dtype=np.int64)])
    return take_last(decoder_only_model(read[None], **task.model)["logits"][0])


@step
def take_last(logits: Array) -> Array:
    """Return the row of the last token, which the next one follows."""
    return np.asarray(logits[-1])


@step
def choose_token(logits: Array) -> int:
    """Return the token of the largest logit, the lowest id among equals (GEN-1, GEN-5)."""
    best, *others = rank_largest(logits[None])[0].tolist()
    note_gaps(np.array([logits[best] - logits[other] for other in others[:1]]))
    return int(best)


@step
def has_ended(prompt: Array, tokens: Sequence[int], task: Generation) -> bool:
    """Return True if the last new token is eos_id; one in the prompt ends nothing (GEN-3)."""
    del prompt
    return list(tokens[-1:]) == [task.eos_id]


@step
def is_full(prompt: Array, tokens: Sequence[int], task: Generation) -> bool:
    """Return True if there are max_new_tokens, not counting the prompt (GEN-2)."""
    del prompt
    return len(tokens) >= task.max_new_tokens


@step
def fill_row(prompt: Array, tokens: Sequence[int], task: Generation) -> list[int]:
    """Return the new tokens without the prompt, with eos_id, and the fill after them."""
    del prompt
    return [*tokens, *[task.fill_id] * (task.max_new_tokens - len(tokens))]
