"""Properties of greedy generation."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties.decoder_only_model import VOCAB, draw_ids
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, Violation, with_inputs
from goldformer.spec.model import Attribute

Ids = NDArray[np.int64]

SEQ, SEED = st.integers(1, 3), st.integers(0, 999)
COUNT = st.integers(1, 3)
#: Padding, which no drawn prompt has. It is eos_id too unless a property needs another one: so nothing follows it.
PAD: Final = VOCAB


def draw_call(subject: Subject, seed: int, seq: int, max_new_tokens: int) -> Arguments:
    """Draw a call with one prompt, of a model with two layers."""
    sizes = {"heads": 2, "kv_heads": 1, "pairs": 2, "d_model": 8, "d_ff": 5, "vocab": VOCAB + 1}
    attributes = {"num_heads": 2, "num_kv_heads": 1, "num_layers": 2, "pad_id": PAD}
    limits = {"eos_id": PAD, "max_new_tokens": max_new_tokens}
    arguments = subject.draw(sizes, seed, **attributes, **limits)
    return with_inputs(arguments, ids=draw_ids(seed, 1, seq))


def with_attributes(arguments: Arguments, **changed: Attribute) -> Arguments:
    """Return the same call with some attributes replaced."""
    return replace(arguments, attributes={**arguments.attributes, **changed})


def generate(subject: Subject, arguments: Arguments) -> Ids:
    """Return the new tokens of a call; NotCheckable if rounding decides, Violation if one is no word."""
    subject.require_decisive(arguments)
    ids: Ids = subject.output(arguments)
    if len(bad := ids[(ids < 0) | (ids > PAD)]):
        raise Violation(f"generates {bad[0]}, which is no word: words are 0 … {PAD}")
    return ids


@holds("gen-continued", seq=SEQ, first=COUNT, more=COUNT, seed=SEED)
def going_on_is_one_call(subject: Subject, seq: int, first: int, more: int, seed: int) -> None:
    """Require that a call with the first tokens in its prompt gives the tokens after them."""
    whole = draw_call(subject, seed, seq, first + more)
    expected = generate(subject, whole)
    begun = generate(subject, with_attributes(whole, max_new_tokens=first))
    claim = f"{first} new tokens are not the first of {first + more}"
    subject.agree(begun, expected[:, :first], 0.0, claim)
    if PAD not in begun:
        prompt = np.concatenate([whole.inputs["ids"], begun], axis=1)
        rest = generate(subject, with_attributes(with_inputs(whole, ids=prompt), max_new_tokens=more))
        claim = f"{more} new tokens after {first} others are not those that one call with {first + more} gives"
        subject.agree(rest, expected[:, first:], 0.0, claim)


@holds("gen-batch", seq=SEQ, longer=st.integers(0, 2), seed=SEED)
def neighbours_do_not_matter(subject: Subject, seq: int, longer: int, seed: int) -> None:
    """Require what two samples give alone where one of them is padded on the left, and one ends before the other."""
    alone = draw_call(subject, seed, seq, 4)
    other = with_inputs(alone, ids=draw_ids(seed + 1, 1, seq + longer))
    padded = np.pad(alone.inputs["ids"], ((0, 0), (longer, 0)), constant_values=PAD)
    both = with_inputs(alone, ids=np.concatenate([other.inputs["ids"], padded]))
    first, second = generate(subject, both)
    # The first sample ends with its first token, if that does not end the second; or else the second after two tokens.
    eos_id = int(first[0] if first[0] not in second else PAD if second[1] == second[0] else second[1])
    expected = [generate(subject, with_attributes(call, eos_id=eos_id)) for call in (other, alone)]
    tokens = generate(subject, with_attributes(both, eos_id=eos_id))
    claim = f"the tokens of samples change when {longer} padding stands before a prompt and both are in one call"
    subject.agree(tokens, np.concatenate(expected), 0.0, claim)


@holds("gen-read", seq=SEQ, count=st.integers(1, 4), seed=SEED)
def writing_is_reading(subject: Subject, seq: int, count: int, seed: int) -> None:
    """Require that the model, reading the prompt and the new tokens at once, ranks each of these first."""
    arguments = draw_call(subject, seed, seq, count)
    [tokens] = generate(subject, arguments)
    new = tokens[: [*tokens, PAD].index(PAD) + 1]
    prompt = arguments.inputs["ids"]
    attributes = {n: v for n, v in arguments.attributes.items() if n not in ("eos_id", "max_new_tokens")}
    # Not the last token: what comes after it is not compared.
    reading = replace(arguments, attributes=attributes, inputs={"ids": np.append(prompt[0], new[:-1])[None]})
    logits = subject.call(reading, "decoder_only_model")["logits"][0, seq - 1 :]
    bound = subject.tolerances(reading, "decoder_only_model")["logits"]
    claim = f"the model that reads {new.tolist()} after its prompt finds another token more probable than one of these"
    subject.agree(logits[np.arange(len(new)), new], logits.max(-1), bound, claim)
