"""Reverse mode against complex steps: f(x + ih) has the imaginary part h·f′(x), but for terms in h³."""

from __future__ import annotations

import numpy as np
import pytest

from goldformer.adapters.textbook.differentiation import gradients
from goldformer.adapters.textbook.reverse import record_leaf
from goldformer.spec.formulas.arrays import arithmetic, as_array

#: A power of 2, which rounds nothing; its square underflows.
STEP = 2.0**-300

X = np.random.default_rng(1).integers(-64, 65, (2, 3, 4)) / 32 + 1 / 128
Y = np.random.default_rng(2).integers(-64, 65, (3, 4)) / 32 + 1 / 128
W = np.random.default_rng(3).integers(-64, 65, (4, 5)) / 32
PLACES = np.array([[0, 2, 2, 1]])


def write_in_place(x):
    changed = x.copy()
    changed[:, 0] = x[:, 1] * 2
    changed *= x
    return changed


#: Functions of x (2, 3, 4), y (3, 4) and w (4, 5), in what formulas and mistakes are made of.
FUNCTIONS = {
    "sums": lambda x, y, w: x + y - 2 * x + 1.5,
    "products": lambda x, y, w: x * y * y,
    "quotients": lambda x, y, w: x / y + 1 / x,
    "powers": lambda x, y, w: x**3 + np.square(y) + np.sqrt(x * x) + np.reciprocal(y),
    "exponentials": lambda x, y, w: np.exp(x) + np.log(np.exp(y) + 1) + np.tanh(x) + np.expm1(y),
    "waves": lambda x, y, w: np.sin(x) * np.cos(y),
    "error function": lambda x, y, w: arithmetic().erf(x) * y,
    "matrices": lambda x, y, w: x @ w,
    "matrices of each sample": lambda x, y, w: x @ x.swapaxes(-1, -2),
    "two matrices": lambda x, y, w: y.T @ y @ w,
    "sums along axes": lambda x, y, w: x.sum(axis=(0, 1)) * x.sum(-1, keepdims=True) + y.sum(),
    "means": lambda x, y, w: x - x.mean(-1, keepdims=True) * y.mean(),
    "maxima": lambda x, y, w: x * x.max(-1, keepdims=True) + y.min() + x.max(axis=(0, 2))[0],
    "running sums": lambda x, y, w: x.cumsum(1) * y,
    "choices": lambda x, y, w: np.where(Y > 0, x, y * y) + np.maximum(arithmetic().decide(y) > 0, 0) * x,
    "parts": lambda x, y, w: x[..., 1:3] * x[:, ::-1, :2] + y[None, :, 0, None],
    "indices": lambda x, y, w: x[:, [0, 0, 2]] * y[np.array([2, 1, 2])],
    "taken": lambda x, y, w: np.take_along_axis(y, PLACES.repeat(3, 0), -1) * x.take([0, 0, 1, 3], -1),
    "joined": lambda x, y, w: np.concatenate([x[0], y, 2 * y], axis=0) * np.stack([y, y]).reshape(6, 4)[[0] * 9],
    "split": lambda x, y, w: np.split(x, 2, axis=-1)[0] * np.split(y, 2, axis=-1)[1],
    "moved": lambda x, y, w: np.roll(x, 1, 1) + np.moveaxis(x, 0, 1).reshape(2, 3, 4) + np.flip(y, 0),
    "repeated": lambda x, y, w: np.repeat(y, 2, 0).reshape(2, 3, 4) * x.repeat(2, axis=0)[::2],
    "padded": lambda x, y, w: np.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1] * np.broadcast_to(y, (2, 3, 4)),
    "in place": lambda x, y, w: write_in_place(x) * y,
    "constants": lambda x, y, w: x * np.full_like(y, 2.0) + np.zeros_like(x) + np.ones_like(y),
    "no axes": lambda x, y, w: as_array((x * x).sum()) / 3.0,
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients_are_those_of_complex_steps(function):
    arguments = {"x": X, "y": Y, "w": W}
    shape = np.shape(function(**arguments))
    cotangent = np.asarray(np.random.default_rng(4).integers(-8, 9, shape) / 4 + 0.125)
    got = gradients(function, cotangent, arguments)
    assert got.keys() == arguments.keys()
    for name, array in arguments.items():
        expected = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            moved = array.astype(complex)
            moved[place] += 1j * STEP
            result = function(**{n: a.astype(complex) for n, a in arguments.items()} | {name: moved})
            expected[place] = (np.imag(result) / STEP * cotangent).sum()
        np.testing.assert_allclose(got[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)


def test_through_the_root_of_0_nothing_flows():
    got = gradients(lambda x: np.sqrt(x) * 1.0, np.ones(2), {"x": np.array([0.0, 4.0])})
    np.testing.assert_array_equal(got["x"], [0.0, 0.25])


def test_equal_maxima_share_what_flows_back():
    got = gradients(lambda x: x.max(-1), np.array([6.0]), {"x": np.array([[1.0, 2.0, 2.0]])})
    np.testing.assert_array_equal(got["x"], [[0.0, 3.0, 3.0]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_gradients_round_in_the_dtype_that_runs(dtype):
    x, w = np.full((1, 4096, 1), 1.0, dtype), np.full((1, 1), 3.0, dtype)
    got = gradients(arithmetic_product, np.full((1, 4096, 1), 1.0, dtype), {"x": x, "w": w})
    # In float16 a sum of ones would stay at 2048.
    assert got["w"].dtype == dtype
    assert got["w"].item() == 4096


def arithmetic_product(x, w):
    return arithmetic().multiply(x, w)


def test_a_constant_ends_what_flows_back():
    got = gradients(lambda x: x * arithmetic().detach(x), np.ones(2), {"x": np.array([2.0, 3.0])})
    np.testing.assert_array_equal(got["x"], [2.0, 3.0])
    got = gradients(lambda x: np.ones(2), np.ones(2), {"x": np.array([2.0, 3.0])})
    np.testing.assert_array_equal(got["x"], [0.0, 0.0])


def test_a_value_with_another_derivative():
    def doubled_on_the_way_back(x):
        return arithmetic().record(x * 5.0, (x, lambda cotangent: 2 * cotangent))

    got = gradients(doubled_on_the_way_back, np.ones(2), {"x": np.array([2.0, 3.0])})
    np.testing.assert_array_equal(got["x"], [2.0, 2.0])
    assert doubled_on_the_way_back(3.0) == 15.0


def test_what_would_lose_derivatives_is_refused():
    with pytest.raises(TypeError, match=r"np\.asarray would lose the derivatives of this array: call as_array"):
        np.asarray(record_leaf(X))
    with pytest.raises(TypeError, match="arctan"):
        np.arctan(record_leaf(X))
