"""Whole matrices of exact numbers against the same products element by element."""

from __future__ import annotations

import flint
import numpy as np
import pytest

from goldformer.spec import draw
from goldformer.spec.oracle import balls, matrices
from goldformer.spec.oracle.draws import ROUNDOFF, Draw

WEIGHT = draw.Dyadic(draw="dyadic", seed=5, range=(-2, 2), step="1/64").build("w", (7, 6))


def elements(make, shape, seed):
    """Numbers with more bits than any weight has: quotients of drawn ones."""
    numbers = draw.Dyadic(draw="dyadic", seed=seed, range=(-2, 2), step="1/64").build("x", shape)
    return np.frompyfunc(make, 1, 1)(numbers) / np.frompyfunc(make, 1, 1)(np.full(shape, 7.0))


def test_a_product_of_balls_encloses_the_exact_one_and_is_hardly_wider():
    x = elements(balls.read, (2, 3, 7), 1) * balls.exact(10) ** 5
    x[0, 0, 0] = balls.exact(0)
    whole = x @ matrices.Weight(WEIGHT, balls.read)
    single = x @ np.frompyfunc(balls.read, 1, 1)(WEIGHT)
    assert whole.shape == single.shape == (2, 3, 6)
    for mine, other in zip(whole.ravel(), single.ravel(), strict=True):
        assert mine.overlaps(other)
        assert mine.contains(other.mid())
        assert float(mine.rad()) < 1e-50


def test_the_radii_of_the_factor_are_carried_on():
    wide = balls.read(0.5) + flint.arb(0, 1e-9)
    x = np.array([[wide] * 7], dtype=object)
    whole = x @ matrices.Weight(WEIGHT, balls.read)
    least = 1e-9 * np.abs(WEIGHT).sum(0)
    radii = [float(ball.rad()) for ball in whole[0]]
    assert (radii >= least).all()
    assert (radii <= least * 1.0001).all()


def test_a_product_of_draws_scatters_as_the_one_element_by_element():
    """Both deviations of 64 samples estimate one deviation, to about a tenth each; the mean over all is closer."""
    Draw.reset()
    x = elements(Draw.read, (40, 7), 2)
    whole = x @ matrices.Weight(WEIGHT, Draw.read)
    single = x @ np.frompyfunc(Draw.read, 1, 1)(WEIGHT)
    centre = np.vectorize(lambda d: d.samples.mean())(single)
    assert np.vectorize(lambda d: d.samples.mean())(whole) == pytest.approx(centre, abs=20 * ROUNDOFF)
    own = np.stack([d.samples for d in x.ravel()]).reshape(40, 7, -1)
    passed_on = np.einsum("rks,kc->rcs", own - own.mean(-1, keepdims=True), WEIGHT)

    def added(product):
        """The squared deviation that the product's own roundoffs add to what x brings along."""
        samples = np.stack([d.samples for d in product.ravel()]).reshape(40, 6, -1)
        return (samples - samples.mean(-1, keepdims=True) - passed_on).var(-1).mean() / ROUNDOFF**2

    assert added(whole) == pytest.approx(added(single), rel=0.1)


def test_exact_zeros_add_no_roundoff():
    Draw.reset()
    x = np.array([[Draw.exact(v) for v in (3, 0, 0, 0, 0, 0, 0)]], dtype=object)
    weight = np.zeros((7, 2))
    weight[0] = [2.0, 0.0]
    first, second = (x @ matrices.Weight(weight, Draw.read))[0]
    assert 0 < np.abs(first.samples - 6).max() < 40 * ROUNDOFF  # one product, six samples' deviations of ±6
    assert not second.samples.any()


def test_ids_select_rows_as_elements():
    rows = matrices.Weight(WEIGHT, balls.read)[np.array([[2, 0], [6, 2]])]
    assert rows.shape == (2, 2, 6)
    assert rows.astype(float).tolist() == WEIGHT[[[2, 0], [6, 2]]].tolist()


@pytest.mark.parametrize("value", [0.1, 2.0**30 + 2.0**-20])
def test_a_weight_of_decimals_is_refused(value):
    weight = np.full((7, 2), value)
    x = np.array([[balls.exact(1)] * 7], dtype=object)
    with pytest.raises(ValueError, match=r"^a large weight must hold binary numbers of at most 24 bits, and"):
        x @ matrices.Weight(weight, balls.read)


def test_a_full_size_case_is_narrowed_to_the_samples_of_its_probes(spec):
    from goldformer.spec.oracle.derive import Method

    case = spec.cases["tf-n9-shapes"]
    how = Method(case, spec.contracts["transformer"], {})
    assert {name: array.shape for name, array in how.inputs().items()} == {"source": (1, 10), "target": (1, 20)}
    assert [int(places[0]) for places in np.array(how.places("logits")).T] == [0] * 10


def one_by_one(x, w, b):
    """x·W + b, one object after the other."""
    if b is None:
        return x @ w
    total = b
    for k, row in enumerate(w):
        total = total + x[..., k, None] * row
    return total


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("start", [0, (1 << 20) - 1000])
def test_draws_multiplied_in_whole_are_those_multiplied_one_by_one(start, bias):
    """With zeros, which round nothing, with several matrices, and where the perturbations come to their end."""
    results = []
    for how in (one_by_one, matrices.multiply):
        Draw.reset()
        x, w, b = (np.asarray(np.frompyfunc(Draw.read, 1, 1)(numbers)) for numbers in (ZEROS, WEIGHT, ZEROS[0, 0, :6]))
        Draw._next = start
        product = how(np.asarray(x * Draw.read(1 / 3)), w, b if bias else None)
        results.append(([(d.samples.tolist(), d.zero) for d in product.flat], product.shape, Draw._next, Draw.peak))
    assert results[0] == results[1]
    assert any(zero for _, zero in results[0][0])


#: Every other number is zero, and one whole row.
ZEROS = draw.Dyadic(draw="dyadic", seed=6, range=(-2, 2), step="1/64").build("x", (2, 3, 7))
ZEROS = ZEROS * (np.arange(42).reshape(2, 3, 7) % 2)
ZEROS[1, 2] = 0.0
