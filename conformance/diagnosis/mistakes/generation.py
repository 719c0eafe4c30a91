"""Mistakes in greedy generation: what is read, which row decides, where a sample ends, and what is returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from goldformer.conformance.diagnosis.mistakes.cached_models import start_at_zero
from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.cached_model import continue_model, find_start
from goldformer.spec.formulas.generation import (
    Generation,
    choose_token,
    fill_row,
    generate_row,
    generate_rows,
    has_ended,
    is_full,
    next_logits,
    take_last,
)
from goldformer.spec.formulas.steps import instead, replacing

NextLogits: TypeAlias = Callable[[Array, Sequence[int], Generation], Array]
FillRow: TypeAlias = Callable[[Array, Sequence[int], Generation], list[int]]

#: A prompt without words, where only new tokens are read.
_NOTHING: Final = np.empty(0, dtype=np.int64)

# What is read


@mistake("gen-not-appended", around=next_logits)
def read_prompt_again(original: NextLogits, prompt: Array, tokens: Sequence[int], task: Generation) -> Array:
    """Return the logits after the prompt, whatever came after it."""
    return original(prompt, [], task)


@mistake("gen-cache-dropped", around=next_logits)
def read_newest(original: NextLogits, prompt: Array, tokens: Sequence[int], task: Generation) -> Array:
    """Return the logits after the newest token, which is read without a cache."""
    return original(_NOTHING if tokens else prompt, tokens[-1:], task)


@mistake("gen-positions-restart", instead_of=next_logits)
def restart_positions(prompt: Array, tokens: Sequence[int], task: Generation) -> Array:
    """Return the logits of calls with a cache, each of which counts its positions from 0."""
    with replacing({find_start: instead(start_at_zero)}):
        called: dict[str, Any] = continue_model(prompt[None], None, **task.model)
        for token in tokens:
            called = continue_model(np.array([[token]]), called["state"], **task.model)
    return take_last(called["logits"][0])


# Which row decides


@mistake("gen-first-row", instead_of=take_last)
def take_first(logits: Array) -> Array:
    """Return the row of the first token that was read."""
    return np.asarray(logits[0])


@mistake("gen-row-before-last", instead_of=take_last)
def take_one_before(logits: Array) -> Array:
    """Return the row of the last token but one, or of the only one."""
    return np.asarray(logits[-2:][0])


@mistake("gen-last-of-equals", instead_of=choose_token)
def choose_last(logits: Array) -> int:
    """Return the token of the largest logit, the highest id among equals."""
    return len(logits) - 1 - int(np.argmax(logits[::-1]))


# Where a sample ends


@mistake("gen-prompt-counted", instead_of=is_full)
def count_prompt(prompt: Array, tokens: Sequence[int], task: Generation) -> bool:
    """Return True if the prompt and the new tokens are max_new_tokens together; one new token comes in any case."""
    return bool(tokens) and len(prompt) + len(tokens) >= task.max_new_tokens


@mistake("gen-one-too-few", instead_of=is_full)
def stop_one_before(prompt: Array, tokens: Sequence[int], task: Generation) -> bool:
    """Return True one token too early."""
    return len(tokens) + 1 >= task.max_new_tokens


@mistake("gen-no-end", instead_of=has_ended)
def never_end(prompt: Array, tokens: Sequence[int], task: Generation) -> bool:
    """Return False: no token ends a sample."""
    return False


@mistake("gen-end-in-prompt", instead_of=has_ended)
def search_prompt(prompt: Array, tokens: Sequence[int], task: Generation) -> bool:
    """Return True if eos_id is anywhere, also in the prompt, after the first new token."""
    return bool(tokens) and task.eos_id in (*prompt.tolist(), *tokens)


@mistake("gen-all-end-with-one", around=generate_rows)
def stop_with_the_first(
    original: Callable[[Array, Generation], list[list[int]]], ids: Array, task: Generation
) -> list[list[int]]:
    """Return rows that are all as long as the one that ends first."""
    rows = original(ids, task)
    first = min(map(len, rows))
    return [row[:first] for row in rows]


@mistake("gen-goes-on-after-end", around=generate_rows)
def go_on_with_the_last(
    original: Callable[[Array, Generation], list[list[int]]], ids: Array, task: Generation
) -> list[list[int]]:
    """Return rows that are all as long as the one that ends last."""
    longest = max(map(len, original(ids, task)))
    with replacing({has_ended: instead(never_end)}):
        return [generate_row(row, task)[:longest] for row in ids]


# What is returned


@mistake("gen-end-dropped", around=fill_row)
def drop_end(original: FillRow, prompt: Array, tokens: Sequence[int], task: Generation) -> list[int]:
    """Return the tokens before eos_id, whose place is filled."""
    return original(prompt, tokens[:-1] if has_ended(prompt, tokens, task) else tokens, task)


@mistake("gen-prompt-returned", around=fill_row)
def return_prompt(original: FillRow, prompt: Array, tokens: Sequence[int], task: Generation) -> list[int]:
    """Return the prompt and the tokens after it, as many as there may be new ones."""
    return original(prompt, [*prompt.tolist(), *tokens][: task.max_new_tokens], task)


@mistake("gen-zeros-after-end", instead_of=fill_row)
def fill_with_zeros(prompt: Array, tokens: Sequence[int], task: Generation) -> list[int]:
    """Return the tokens, with zeros after them."""
    return [*tokens, *[0] * (task.max_new_tokens - len(tokens))]
