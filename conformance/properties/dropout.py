"""Properties of dropout."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments, Array
from goldformer.conformance.properties.hypothesis_search import EXAMPLES
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, Violation
from goldformer.spec.laws import FALSE_ALARM

RATE, SEED = st.sampled_from([0.1, 0.25, 0.5, 0.75]), st.integers(0, 999)

#: Samples, tokens and channels. Each has enough elements: chance never drops all of them, and never keeps all.
SHAPE: Final = (70, 71, 72)


def draw_call(subject: Subject, seed: int, rate: float, *, training: bool = True) -> Arguments:
    """Draw a call with an input of 300 elements, a few of them 0."""
    sizes = {"batch": 30, "n": 10}
    return subject.draw(sizes, seed, rate=rate, training=training, seed=seed)


@holds("dropout-values", rate=RATE, seed=SEED)
def an_element_is_dropped_or_scaled_up(subject: Subject, rate: float, seed: int) -> None:
    """Require that every element is 0 or x/(1 − rate)."""
    arguments = draw_call(subject, seed, rate)
    output = subject.output(arguments)
    kept = np.where(output == 0, 0.0, arguments.inputs["x"] / (1 - rate))
    subject.agree(output, kept, subject.bound(arguments), "an element is neither 0 nor x/(1 − rate)")


@holds("dropout-seed", rate=RATE, seed=SEED)
def the_seed_decides(subject: Subject, rate: float, seed: int) -> None:
    """Require that only the seed decides which elements are dropped.

    By chance two seeds drop the same of 300 elements, at a rate of 0.1, less often than once in 10²⁵.
    """
    first, again, other = (
        subject.call(Arguments({"x": np.ones((30, 10))}, {}, {"rate": rate, "training": True, "seed": s}))
        for s in (seed, seed, seed + 1)
    )
    subject.agree(again["output"], first["output"], 0.0, "the same seed drops other elements the second time")
    if np.array_equal(first["output"], other["output"]):
        raise Violation(f"seeds {seed} and {seed + 1} drop the same elements")


@holds("dropout-after-evaluation", rate=RATE, seed=SEED)
def evaluation_switches_nothing_off(subject: Subject, rate: float, seed: int) -> None:
    """Require that a call in evaluation mode does not switch dropout off in training.

    By chance a call drops no element of 300, at a rate of 0.1, less often than once in 10¹³.
    """
    subject.call(draw_call(subject, seed, rate, training=False))
    ones = Arguments({"x": np.ones((30, 10))}, {}, {"rate": rate, "training": True, "seed": seed})
    if not (subject.output(ones) == 0).any():
        raise Violation("after a call in evaluation mode nothing is dropped in training")


@holds("dropout-independence", seed=SEED)
def elements_are_dropped_one_by_one(subject: Subject, seed: int) -> None:
    """Require that about half of the elements are dropped along every row of every axis."""
    arguments = Arguments({"x": np.ones(SHAPE)}, {}, {"rate": 0.5, "training": True, "seed": seed})
    dropped = subject.output(arguments) == 0
    lines = sum(math.prod(SHAPE) // size for size in SHAPE)
    # Chernoff's bound for each line, all of them in all examples together: P ≤ 2·exp(−n·D(share ‖ 1/2)).
    limit = math.log(2 * lines * EXAMPLES / FALSE_ALARM)
    for axis, name in enumerate(("sample", "token", "channel")):
        share = dropped.mean(axis)
        surprise = SHAPE[axis] * (math.log(2) - _entropy(share))
        if surprise.max() > limit:
            worst = np.unravel_index(int(surprise.argmax()), share.shape)
            lost = f"at one place {share[worst]:.0%} of {SHAPE[axis]} {name}s lose theirs"
            if dropped.any() and np.isin(share, (0, 1)).all():
                lost = f"all {name}s lose the same ones"
            raise Violation(f"elements are not dropped one by one: {lost} at a rate of 0.5")


def _entropy(share: Array) -> Array:
    """Return the entropy of a share of dropped elements, in nats."""
    total = np.zeros_like(share)
    for p in (share, 1 - share):
        total -= np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0)
    return total


@holds("dropout-evaluation", rate=st.sampled_from([0.0, 0.1, 0.5, 0.75, 1.0]), seed=SEED)
def it_is_the_identity_when_not_training(subject: Subject, rate: float, seed: int) -> None:
    """Require that the output is the input, in every bit."""
    arguments = draw_call(subject, seed, rate, training=False)
    output = subject.output(arguments)
    subject.agree(output, arguments.inputs["x"], 0.0, "the output is not the input, although it is not training")
