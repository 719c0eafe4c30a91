"""Each mistake in what is random draws as code with it does."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property

COMPONENTS = {"xavier_uniform", "dropout"}
MISTAKES = [id_ for id_, m in implementations().items() if m.module == "randomness"]
#: Its result has another shape: there are no numbers to compare.
OF_ANOTHER_SHAPE = "xavier-transposed"
#: No case can list these: one call is as it should be. Properties compare it with another.
UNSEEN_IN_ONE_CALL = {
    "xavier-one-seed": "xavier-seed",
    "dropout-one-seed": "dropout-seed",
    "dropout-sticky": "dropout-after-evaluation",
}


def test_every_mistake_of_the_catalogue_is_made(spec):
    named = {m.id for m in spec.mistakes.values() if m.component in COMPONENTS}
    assert named | {id_ for id_ in spec.mistakes if id_.startswith("attention-dropout-")} == {*MISTAKES}


def test_what_is_no_number_is_named(verdicts_on_mistake):
    assert {verdict.reason for verdict in verdicts_on_mistake(OF_ANOTHER_SHAPE, "float32")} == {"wrong-shape"}


@pytest.mark.parametrize("mistake", UNSEEN_IN_ONE_CALL)
def test_what_no_call_shows_by_itself_is_claimed_by_a_property_alone(mistake, spec):
    assert [p.id for p in spec.properties.values() if mistake in p.catches] == [UNSEEN_IN_ONE_CALL[mistake]]
    assert [case.id for case in spec.cases.values() if mistake in case.kills] == []


def made(mistake):
    return implementations()[mistake].make()


# Initialisation: 24 000 elements of a weight of 80 by 300, between least and most

D_IN, D_OUT = 80, 300
RIGHT = math.sqrt(6 / (D_IN + D_OUT))
BOUNDS = {
    "xavier-fan-in": (-math.sqrt(3 / D_IN), math.sqrt(3 / D_IN)),
    "xavier-fan-out": (-math.sqrt(3 / D_OUT), math.sqrt(3 / D_OUT)),
    "xavier-he": (-math.sqrt(6 / D_IN), math.sqrt(6 / D_IN)),
    "xavier-std-as-bound": (-math.sqrt(2 / (D_IN + D_OUT)), math.sqrt(2 / (D_IN + D_OUT))),
    "xavier-one-sided": (0, RIGHT),
    "xavier-thirds": (-math.sqrt(6 / (D_IN + D_OUT / 3)), math.sqrt(6 / (D_IN + D_OUT / 3))),
    "xavier-transposed": (-RIGHT, RIGHT),
}


@pytest.mark.parametrize("mistake", BOUNDS)
def test_a_weight_is_drawn_between_the_bounds_of_code_with_the_mistake(mistake):
    weight = made(mistake).xavier_uniform(np.zeros((D_IN, D_OUT)), seed=1)["weight"]
    assert weight.shape == ((D_OUT, D_IN) if mistake == OF_ANOTHER_SHAPE else (D_IN, D_OUT))
    least, most = BOUNDS[mistake]
    assert least <= weight.min()
    assert weight.max() <= most
    # That a thousandth at either end is empty has a probability of 1e-10.
    assert [weight.min(), weight.max()] == pytest.approx([least, most], abs=1e-3 * (most - least))


def test_all_weights_begin_alike():
    like = np.zeros((D_IN, D_OUT))
    one, other = (made("xavier-one-seed").xavier_uniform(like, seed=seed)["weight"] for seed in (1, 2))
    assert np.array_equal(one, other)


def test_a_normal_distribution_has_no_bound_and_the_right_variance():
    weight = made("xavier-normal").xavier_uniform(np.zeros((D_IN, D_OUT)), seed=1)["weight"]
    assert np.abs(weight).max() > 1.5 * RIGHT
    assert weight.var() == pytest.approx(2 / (D_IN + D_OUT), rel=0.05)


def test_a_weight_whose_columns_do_not_divide_by_three_is_one_weight():
    like = np.zeros((6, 7))
    got, expected = (book.xavier_uniform(like, seed=2)["weight"] for book in (made("xavier-thirds"), build_textbook()))
    assert np.array_equal(got, expected)


# Dropout: which elements are 0, and what the others are

X = np.arange(1.0, 61).reshape(3, 5, 4)
RIGHTLY_DROPPED = build_textbook().dropout(X, rate=0.25, training=True, seed=3)


def dropped(mistake, **changed):
    return made(mistake).dropout(X, **{"rate": 0.25, "training": True, "seed": 3} | changed)


def test_what_is_kept_is_not_scaled_up():
    assert np.array_equal(dropped("dropout-no-rescale"), np.where(RIGHTLY_DROPPED == 0, 0, X))


def test_a_rate_of_the_kept():
    assert np.array_equal(
        dropped("dropout-keep-probability"), build_textbook().dropout(X, rate=0.75, training=True, seed=3)
    )


def test_rows_are_dropped_as_a_whole():
    rows = dropped("dropout-whole-rows") == 0
    assert (rows.all(axis=-1) | ~rows.any(axis=-1)).all()
    assert 0 < rows.sum() < rows.size


def test_all_samples_and_tokens_lose_the_same_channels():
    channels = (dropped("dropout-shared-mask") == 0).reshape(-1, 4)
    assert (channels == channels[0]).all()
    assert 0 < channels[0].sum() < 4


def test_every_call_drops_the_same_elements():
    assert np.array_equal(dropped("dropout-one-seed", seed=1), dropped("dropout-one-seed", seed=2))
    assert not np.array_equal(dropped("dropout-no-rescale", seed=1), dropped("dropout-no-rescale", seed=2))


def test_elements_are_dropped_when_it_is_not_training():
    assert np.array_equal(dropped("dropout-in-evaluation", training=False), RIGHTLY_DROPPED)


def test_the_input_is_scaled_when_it_is_not_training():
    assert np.array_equal(dropped("dropout-scaled-in-evaluation", training=False), X * 0.75)
    assert np.array_equal(dropped("dropout-scaled-in-evaluation"), RIGHTLY_DROPPED)


def test_evaluation_switches_dropout_off_for_good():
    book = made("dropout-sticky")
    results = [book.dropout(X, rate=0.25, training=training, seed=3) for training in (True, False, True)]
    assert np.array_equal(results, [RIGHTLY_DROPPED, X, X])


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dropout_that_stays_off_is_caught_by_the_property_that_lists_it(dtype, spec):
    bench = Bench(spec, Adapter.from_object(made("dropout-sticky"), "dropout-sticky", spec), dtype, "cpu")
    listing = [prop for prop in spec.properties.values() if "dropout-sticky" in prop.catches]
    verdicts = [check_property(prop, "dropout", bench) for prop in listing]
    assert [verdict.status for verdict in verdicts] == [Status.FAILED]


# Dropout in attention: what the values, of which each has a channel of its own, make of the weights

QUERY = KEY = np.array([[0.0, 0.0], [1, 2], [-1, 1], [2, 0]])
MASK = np.tri(4, dtype=bool)


def attend(book, **dropout):
    return book.scaled_dot_product_attention(QUERY, KEY, np.eye(4), MASK, **dropout)["output"]


def test_dropped_scores_leave_every_key_a_weight_but_those_that_are_masked():
    output = attend(made("attention-dropout-scores"), dropout_rate=0.5, seed=1)
    np.testing.assert_allclose(output.sum(axis=-1), np.ones(4), rtol=1e-15)
    assert np.array_equal(output > 0, MASK)
    # All scores are dropped: every key that is left has the same weight.
    output = attend(made("attention-dropout-scores"), dropout_rate=1.0, seed=1)
    np.testing.assert_allclose(output, MASK / MASK.sum(axis=-1, keepdims=True), rtol=1e-15)


def test_weights_that_are_left_sum_to_one_again():
    right = attend(build_textbook(), dropout_rate=0.25, seed=5)
    output = attend(made("attention-dropout-renormalised"), dropout_rate=0.25, seed=5)
    np.testing.assert_allclose(output, right / right.sum(axis=-1, keepdims=True), rtol=1e-15)


def test_elements_of_the_output_are_dropped():
    output = attend(made("attention-dropout-output"), dropout_rate=0.25, seed=6)
    assert np.array_equal(output, build_textbook().dropout(attend(build_textbook()), rate=0.25, training=True, seed=6))
    assert np.array_equal(attend(made("attention-dropout-output")), attend(build_textbook()))


# What the statistics of a draw of another generator tell: its numbers are never those of the imitation


def name_draw(spec, component, function):
    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="numpy", **{component: function}), "mine", spec)
    bench = Bench(spec, adapter, "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in spec.cases_of(component))
    return [(f.label, f.mistakes) for f in diagnose(verdicts, spec) if f.mistakes]


def draw(distribution):
    def xavier_uniform(like, *, seed):
        random = np.random.Generator(np.random.MT19937(seed + 1000))
        return distribution(random, *like.shape).astype(like.dtype)

    return xavier_uniform


DRAWS = {
    "xavier-normal": lambda random, i, o: random.normal(0, math.sqrt(2 / (i + o)), (i, o)),
    "xavier-fan-in": lambda random, i, o: random.uniform(-1, 1, (i, o)) * math.sqrt(3 / i),
    "xavier-he": lambda random, i, o: random.uniform(-1, 1, (i, o)) * math.sqrt(6 / i),
    "xavier_uniform.normal.0.02": lambda random, i, o: random.normal(0, 0.02, (i, o)),
    "xavier_uniform.uniform.linear": lambda random, i, o: random.uniform(-1, 1, (i, o)) / math.sqrt(i),
    "xavier_uniform.unit": lambda random, i, o: random.random((i, o)),
    "xavier_uniform.zero": lambda random, i, o: np.zeros((i, o)),
}


@pytest.mark.parametrize("id_", DRAWS)
def test_a_draw_is_named_by_its_distribution(id_, spec):
    assert name_draw(spec, "xavier_uniform", draw(DRAWS[id_])) == [("Mistake found", (id_,))]


def test_a_draw_that_is_right_is_not_named(spec):
    right = draw(lambda random, i, o: random.uniform(-1, 1, (i, o)) * math.sqrt(6 / (i + o)))
    assert name_draw(spec, "xavier_uniform", right) == []


def test_a_draw_of_an_unknown_distribution_is_not_called_by_another_name(spec):
    heavy = draw(lambda random, i, o: random.laplace(0, 1 / math.sqrt(i + o), (i, o)))
    assert name_draw(spec, "xavier_uniform", heavy) == []


def test_what_dropout_does_with_the_rate_is_named(spec):
    def keep_by_rate(x, *, rate, training, seed):
        kept = np.random.Generator(np.random.MT19937(seed + 1000)).random(x.shape) < rate
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(kept, x / (1 - rate), 0).astype(x.dtype) if training else x

    assert name_draw(spec, "dropout", keep_by_rate) == [("Mistake found", ("dropout.kept-by-rate",))]
