"""Properties of single-head self-attention over one sequence."""

from __future__ import annotations

import re
from typing import Final

from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments, BadResult, NotCheckable
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import NotAdvised, Subject

SEQ, WIDTH, SEED = st.integers(2, 6), st.integers(1, 4), st.integers(0, 999)
LAST = st.integers(0, 4)

#: The cases that show SHA-9, and what the message holds besides the name of the weight: the shape, in numbers or names.
NAMING: Final = {"sha-w-q-missing": "", "sha-w-k-not-square": r"2\D{1,5}2|d_?model\D{1,5}d_?model|square"}


def draw_call(subject: Subject, seed: int, seq: int, d_model: int, *, causal: bool) -> Arguments:
    """Draw a call with one sequence and weights."""
    return subject.draw({"seq": seq, "d_model": d_model}, seed, causal=causal)


@holds("sha-permutation", seq=SEQ, d_model=WIDTH, seed=SEED)
def permutation_equivariance(subject: Subject, seq: int, d_model: int, seed: int) -> None:
    """Require that without a mask, permuted tokens give permuted rows."""
    relations.follows_order(subject, draw_call(subject, seed, seq, d_model, causal=False), "x", seed=seed)


@holds("sha-causality", seq=SEQ, d_model=WIDTH, seed=SEED, last=LAST)
def later_tokens_do_not_matter(subject: Subject, seq: int, d_model: int, seed: int, last: int) -> None:
    """Require that in the causal form, row i does not depend on the tokens after i."""
    arguments, other = (draw_call(subject, s, seq, d_model, causal=True) for s in (seed, seed + 1000))
    relations.ignores_later(subject, arguments, other, "x", last=last)


@holds("sha-hidden-gradient", seq=SEQ, d_model=WIDTH, seed=SEED, last=LAST)
def later_tokens_have_no_gradient(subject: Subject, seq: int, d_model: int, seed: int, last: int) -> None:
    """Require that in the causal form, the Jacobian of row i by tokens after i is exactly 0."""
    arguments, other = (draw_call(subject, s, seq, d_model, causal=True) for s in (seed, seed + 1))
    relations.passes_no_gradient_back(subject, arguments, other.inputs["x"], "x", last=last)


@holds("sha-message")
def message_names_the_weight(subject: Subject) -> None:
    """Require that the error about a weight names the weight, and the shape that it must have."""
    refused = 0
    for id_, shape in NAMING.items():
        case = subject.bench.spec.cases[id_]
        _, problem = subject.bench.call_unchecked(case)
        if not isinstance(problem, BadResult) or problem.reason != "raised":
            continue  # accepted, or no answer at all: the case itself says so
        refused += 1
        message = str(problem.__cause__ or problem).lower()
        name = str(case.error).replace("_", "[_ ]?")
        if not re.search(rf"(?<![a-z]){name}(?![a-z])", message) or not re.search(shape, message):
            wanted = f"{case.error} and the shape (2, 2)" if shape else str(case.error)
            raise NotAdvised(f"the error about a bad {case.error} does not name {wanted}: {problem}")
    if not refused:
        raise NotCheckable("no bad weight is refused, so there is no message")
