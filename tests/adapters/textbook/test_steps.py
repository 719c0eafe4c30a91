"""Steps of the textbook: where a replacement is in force, and that it is nowhere else."""

from __future__ import annotations

import inspect
from threading import Thread

import numpy as np
import pytest

from goldformer.adapters import textbook
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes.places import TRACKED, MistakePlace, restrict_to
from goldformer.spec.formulas import SESSION_CALLS
from goldformer.spec.formulas.attention import fill_masked, scaled_dot_product_attention, score_divisor, softmax
from goldformer.spec.formulas.heads import project
from goldformer.spec.formulas.layers import feed_forward
from goldformer.spec.formulas.steps import around, instead, replacing

SCORES = np.array([0.0, 1.0])
RIGHT = softmax(SCORES).tolist()


def ones(scores):
    """A softmax that is none."""
    return np.ones_like(scores)


def double(original, scores):
    return 2 * original(scores)


def scaled_by(divisor):
    """Return the outputs of attention whose scores are divided by a number."""
    x = np.arange(6.0).reshape(2, 3)
    with replacing({score_divisor: instead(lambda sizes: divisor)}):
        return scaled_dot_product_attention(x, x, x)["scaled_scores"]


def test_a_step_is_replaced_in_all_that_calls_it():
    assert np.array_equal(scaled_by(1.0), 4 * scaled_by(4.0))


def test_a_replacement_ends_with_its_context_also_after_an_error():
    with replacing({softmax: instead(ones)}):
        assert softmax(SCORES).tolist() == [1, 1]
    with pytest.raises(KeyError, match="d_k"), replacing({softmax: instead(ones)}):
        score_divisor({})
    assert softmax(SCORES).tolist() == RIGHT


def test_a_replacement_may_call_the_original_and_later_layers_lie_over_earlier_ones():
    with replacing({softmax: instead(ones)}, {softmax: around(double)}):
        assert softmax(SCORES).tolist() == [2, 2]
        with replacing({softmax: around(double)}):
            assert softmax(SCORES).tolist() == [4, 4]
        assert softmax(SCORES).tolist() == [2, 2]
    with replacing({softmax: around(double)}, {softmax: instead(ones)}):
        assert softmax(SCORES).tolist() == [1, 1]


def test_another_thread_has_its_own_replacements():
    seen = []
    with replacing({softmax: instead(ones)}):
        thread = Thread(target=lambda: seen.append(softmax(SCORES).tolist()))
        thread.start()
        thread.join()
    assert seen == [RIGHT]


def test_a_built_textbook_has_its_own_steps_whatever_is_replaced_around_it():
    made = build_textbook({softmax: instead(ones)})
    assert made.softmax(SCORES).tolist() == [1, 1]
    assert softmax(SCORES).tolist() == build_textbook().softmax(SCORES).tolist() == RIGHT
    with replacing({softmax: around(double)}):
        assert made.softmax(SCORES).tolist() == [1, 1]
        assert build_textbook().softmax(SCORES).tolist() == RIGHT


def test_a_replacement_keeps_its_memory_for_one_textbook():
    def count(original):
        calls = []

        def counted(scores):
            calls.append(scores)
            return np.full_like(scores, len(calls))

        return counted

    one, other = (build_textbook({softmax: count}) for _ in range(2))
    assert [one.softmax(SCORES)[0], one.softmax(SCORES)[0], other.softmax(SCORES)[0]] == [1, 2, 1]


def test_what_is_no_step_cannot_be_replaced():
    with pytest.raises(ValueError, match="ones is not a step of the textbook"), replacing({ones: instead(ones)}):
        pass


def test_a_step_can_be_replaced_in_one_place():
    x, params = np.ones((1, 2, 3)), {"w_1": np.ones((3, 3)), "w_2": np.ones((3, 3))}

    def twice(original, x, params, role):
        return 2 * original(x, params, role)

    second = restrict_to(MistakePlace("the second map", role="2"), {project: around(twice)})
    right, hidden = feed_forward(x, params=params)
    with replacing(second, TRACKED):
        got, got_hidden = feed_forward(x, params=params)
    assert np.array_equal(got, 2 * right)
    assert np.array_equal(got_hidden, hidden)


def test_the_components_are_steps_by_their_own_names_and_signatures():
    assert list(textbook.COMPONENTS) == sorted(textbook.COMPONENTS)
    once = {name: component for name, component in textbook.COMPONENTS.items() if name not in SESSION_CALLS}
    assert all(name == component.__name__ for name, component in once.items())
    assert {name: textbook.COMPONENTS[name] for name in SESSION_CALLS} == SESSION_CALLS
    assert list(inspect.signature(build_textbook().softmax).parameters) == ["scores"]
    assert list(inspect.signature(fill_masked).parameters) == ["scaled", "mask"]
