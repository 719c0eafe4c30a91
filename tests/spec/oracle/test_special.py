"""Functions and constants for every kind of number: against their definitions, and against each other."""

from __future__ import annotations

import math

import flint
import numpy as np
import pytest

from goldformer.spec.oracle import balls
from goldformer.spec.oracle.draws import Draw
from goldformer.spec.oracle.duals import Dual
from goldformer.spec.oracle.rounding import Rounding
from goldformer.spec.oracle.samples import Sampler
from goldformer.spec.oracle.special import erf, pi
from goldformer.spec.oracle.variances import Propagation

POINTS = np.array([-3.5, -0.75, 0.0, 0.3, 2.25])


def test_pi_is_that_of_the_ball_arithmetic():
    with balls.precision(balls.FULL_SIZE):
        assert pi(balls.exact).overlaps(flint.arb.pi())
        assert float(pi(balls.exact).rad()) < 1e-130
    assert pi(np.asarray) == math.pi


@pytest.mark.parametrize("run", [Propagation, Sampler])
def test_erf_and_tanh_of_rounded_arrays_are_those_of_floats(run):
    how = run(Rounding.of("float32"))
    for function, one in ((erf, math.erf), (np.tanh, math.tanh)):
        made = function(how.read(POINTS) * how.hold(np.array(1.1)))
        np.testing.assert_allclose(made.astype(np.float64), [one(1.1 * x) for x in POINTS], rtol=0, atol=1e-15)


def test_erf_keeps_the_dtype_and_the_derivative_of_plain_arrays():
    assert erf(POINTS).dtype == np.float64
    stepped = erf(POINTS + 1e-30j)
    np.testing.assert_allclose(stepped.imag / 1e-30, 2 / math.sqrt(math.pi) * np.exp(-(POINTS**2)), rtol=1e-14)


@pytest.mark.parametrize("name", ["erf", "tanh"])
@pytest.mark.parametrize("x", POINTS)
def test_the_slopes_of_balls_and_of_draws_agree(name, x):
    tangent = np.array([balls.exact(1)], dtype=object)
    proven = getattr(Dual(balls.exact(x), tangent), name)()
    drawn = getattr(Dual(Draw.exact(x), Draw(np.ones((1, 64)))), name)()
    difference = 1e-6
    function = getattr(math, name)
    slope = (function(x + difference) - function(x - difference)) / (2 * difference)
    assert float(proven.tangent[0]) == pytest.approx(slope, abs=1e-8)
    assert float(drawn.tangent.samples[0, 0]) == pytest.approx(slope, abs=1e-8)
    assert float(proven.value) == pytest.approx(function(x), abs=1e-15)
