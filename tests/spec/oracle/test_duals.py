"""Golden gradients against difference quotients in ball arithmetic, which know no product rule."""

from __future__ import annotations

import tracemalloc

import flint
import numpy as np
import pytest

from drawn_scales import measure
from goldformer.spec.oracle import balls, duals
from goldformer.spec.oracle.derive import apply, evaluate
from goldformer.spec.oracle.draws import Draw, error_scale

#: So small that the quotient's own error is below 10⁻³⁰, and so large that 256 bits still see it.
STEP = flint.arb(10) ** -20


def drawn(seed, *shape):
    return np.random.default_rng(seed).integers(-16, 17, shape) / 8


def some(seed, *shape):
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def projections(width, biases=True):
    params = {f"w_{role}": drawn(40 + i, width, width) / 2 for i, role in enumerate("qkvo")}
    return params | ({f"b_{role}": drawn(50 + i, width) for i, role in enumerate("qkvo")} if biases else {})


def under(prefix, params):
    return {f"{prefix}.{name}": array for name, array in params.items()}


NORM = {"gamma": drawn(61, 4), "beta": drawn(62, 4)}
FEED = {"w_1": drawn(63, 4, 3), "b_1": drawn(64, 3), "w_2": drawn(65, 3, 4), "b_2": drawn(66, 4)}
GATED = {"w_gate": drawn(69, 4, 3), "b_gate": drawn(70, 3), "w_up": drawn(71, 4, 3), "b_up": drawn(72, 3),
         "w_down": drawn(73, 3, 4), "b_down": drawn(74, 4)}  # fmt: skip
LAYER = {**under("self_attention", projections(4)), **under("norm_1", NORM), **under("feed_forward", FEED),
         **under("norm_2", {"gamma": drawn(67, 4), "beta": drawn(68, 4)})}  # fmt: skip
TOKENS = {"query": drawn(1, 2, 2, 3), "key": drawn(2, 2, 3, 3), "value": drawn(3, 2, 3, 2)}
X = {"x": drawn(4, 1, 2, 4)}
GROUPED = {"query": drawn(9, 1, 4, 2, 3), "key": drawn(10, 1, 2, 3, 3), "value": drawn(11, 1, 2, 3, 2)}
EMPTY = np.array([[True, False, True], [False, False, False]])

CALLS = {
    "softmax": ("softmax", {"scores": drawn(5, 2, 3)}, {}, {}, {}, "output"),
    "attention": ("scaled_dot_product_attention", TOKENS, {}, {}, {}, "output"),
    "attention under a mask": (
        "scaled_dot_product_attention", {**TOKENS, "mask": some(6, 2, 2, 3)}, {}, {}, {}, "output",
    ),
    "an empty row, uniform": ("scaled_dot_product_attention", {**TOKENS, "mask": EMPTY}, {}, {}, {}, "output"),
    "an empty row, zeros": (
        "scaled_dot_product_attention", {**TOKENS, "mask": EMPTY}, {}, {}, {"empty_row": "zeros"}, "output",
    ),
    "grouped queries": ("grouped_query_attention", GROUPED, {}, {}, {}, "output"),
    "grouped queries, tiled": ("grouped_query_attention", GROUPED, {}, {}, {"gqa_groups": "tile"}, "output"),
    "two heads": (
        "multi_head_attention", dict.fromkeys(("query", "key", "value"), X["x"]), projections(4), {"num_heads": 2},
        {}, "output",
    ),
    "feed-forward": ("feed_forward", X, FEED, {}, {}, "output"),
    **{
        f"gated, {option}": ("gated_feed_forward", X, GATED, {}, {"gate_activation": option}, "output")
        for option in ("silu", "gelu", "gelu_tanh", "relu")
    },
    "layer norm": ("layer_norm", X, NORM, {}, {}, "output"),
    "rms norm": ("rms_norm", X, {"gamma": NORM["gamma"]}, {}, {}, "output"),
    "rms norm, eps outside": (
        "rms_norm", X, {"gamma": NORM["gamma"]}, {}, {"rms_norm_eps_place": "outside"}, "output",
    ),
    "an encoder layer": ("encoder_layer", X, LAYER, {"num_heads": 2}, {}, "output"),
    "an encoder layer, pre": ("encoder_layer", X, LAYER, {"num_heads": 2}, {"norm_placement": "pre"}, "output"),
    "the loss": (
        "cross_entropy", {"logits": drawn(7, 2, 2, 3), "targets": np.array([[1, 0], [2, 1]])}, {}, {"pad_id": 0}, {},
        "loss",
    ),
    "the divergence": (
        "kl_divergence", {"target": np.array([[0.5, 0.25, 0.25]]), "logits": drawn(8, 1, 3)}, {}, {}, {}, "output",
    ),
}  # fmt: skip


def dual_gradients(call, cotangent, number, given, unit):
    component, inputs, params, attributes, conventions, output = call
    floats = {n: a for n, a in {**inputs, **params}.items() if a.dtype.kind == "f"}

    def formula(dual, seeded):
        return evaluate(component, dual, seeded, inputs, params, attributes, conventions, lambda v: dual(given(v)))

    return duals.gradients(formula, floats, np.frompyfunc(given, 1, 1)(cotangent), output, number, given, unit)


def weighted(call, cotangent, name, place, step):
    """Σ cotangent·output with one element moved by a ball."""
    component, inputs, params, attributes, conventions, output = call

    def moved(arrays):
        made = {n: np.frompyfunc(balls.read, 1, 1)(a) if a.dtype.kind == "f" else a for n, a in arrays.items()}
        if name in made:
            made[name] = made[name].copy()
            made[name][place] = made[name][place] + step
        return made

    given = {**moved(inputs), **moved(params)}
    # Elements are balls already: hand them through.
    arrays = {n: given[n] for n in inputs}, {n: given[n] for n in params}
    result = evaluate_made(component, *arrays, attributes, conventions)[output]
    return sum(flint.arb(c) * r for c, r in zip(cotangent.ravel().tolist(), result.ravel(), strict=True))


def evaluate_made(component, inputs, params, attributes, conventions):
    return apply(component, balls.exact, inputs, params, attributes, conventions)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_duals_agree_with_difference_quotients(call):
    component, inputs, params, attributes, conventions, output = call
    shape = evaluate(component, balls.exact, balls.read, inputs, params, attributes, conventions)[output].shape
    cotangent = drawn(9, *shape) if shape else np.array(1.5)
    gradients = dual_gradients(call, cotangent, balls.exact, balls.read, duals.unit_balls(balls.exact))
    assert set(gradients) == {n for n, a in {**inputs, **params}.items() if a.dtype.kind == "f"}
    for name, gradient in gradients.items():
        # Every element of small arrays, a few of large ones: each quotient runs the formula twice.
        places = list(np.ndindex(gradient.shape))
        for place in places[:: max(len(places) // 4, 1)]:
            up, down = (weighted(call, cotangent, name, place, sign * STEP) for sign in (1, -1))
            quotient = (up - down) / (2 * STEP)
            assert float(abs(quotient - gradient[place]).mid()) < 1e-25, f"{name}{place}"


@pytest.mark.parametrize("wave", [np.sin, np.cos])
def test_waves_agree_with_difference_quotients(wave):
    one, angle = balls.exact(1), balls.read(0.75)
    seeded = wave(np.array([duals.Dual(angle, one)], dtype=object))[0]
    assert seeded.value.overlaps(wave(np.array([angle], dtype=object))[0])
    up, down = wave(np.array([angle + STEP, angle - STEP], dtype=object))
    assert float(abs((up - down) / (2 * STEP) - seeded.tangent).mid()) < 1e-25
    # What nothing depends on has no derivatives, such as the angle of a position.
    assert wave(np.array([duals.Dual(angle)], dtype=object))[0].tangent is None


@pytest.mark.parametrize("causal", [True, False])
def test_the_backward_pass_of_the_training_step_is_that_of_duals(causal):
    inputs, square = {"x": drawn(10, 4, 3)}, {f"w_{role}": drawn(11 + i, 3, 3) for i, role in enumerate("qkv")}
    cotangent = drawn(14, 4, 3)
    call = ("single_head_attention", inputs, square, {"causal": causal}, {}, "output")
    gradients = dual_gradients(call, cotangent, balls.exact, balls.read, duals.unit_balls(balls.exact))
    how = {"causal": causal, "learning_rate": 0.1, "steps": 1}
    stepped = evaluate(
        "single_head_attention_step",
        balls.exact,
        balls.read,
        {**inputs, "output_gradient": cotangent},
        square,
        how,
        {},
    )
    expected = {name: weight - flint.arb(1) / 10 * gradients[name] for name, weight in square.items()}
    for name, array in {"x_gradient": gradients["x"], **expected}.items():
        for ball, other in zip(stepped[name].ravel(), array.ravel(), strict=True):
            assert ball.overlaps(other), name
            assert float((ball - other).abs_upper()) < 1e-60, name


def test_what_a_mask_hides_has_exactly_no_gradient():
    mask = np.array([[True, True, False], [True, False, False]])
    call = ("scaled_dot_product_attention", {**TOKENS, "mask": mask}, {}, {}, {}, "output")
    gradients = dual_gradients(call, drawn(9, 2, 2, 2), balls.exact, balls.read, duals.unit_balls(balls.exact))
    for name in ("key", "value"):
        assert balls.decimals(gradients[name][:, 2]) == ["0"] * gradients[name][:, 2].size
        assert balls.decimals(gradients[name][:, 1]) != ["0"] * gradients[name][:, 1].size


def test_the_scale_of_a_gradient_is_about_that_of_its_output():
    call = CALLS["two heads"]
    cotangent = drawn(9, 1, 2, 4)
    golden = dual_gradients(call, cotangent, balls.exact, balls.read, duals.unit_balls(balls.exact))
    Draw.reset()
    draws = dual_gradients(call, cotangent, Draw.exact, Draw.read, duals.unit_draw)
    output = measure(*call[:5]).scales["output"]
    for name, gradient in golden.items():
        values = np.array([float(v) for v in gradient.ravel()])
        scale = error_scale(draws[name], values)
        if np.abs(values).max() > 0.01:
            assert 0.01 * output < scale < 100 * output, name


def test_the_tangents_of_inputs_take_memory_only_when_they_are_used():
    tracemalloc.start()
    tangents = [duals.unit_draw(range(450), k) for k in range(450)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1 << 17
    assert np.array_equal(tangents[3].samples, np.eye(450)[:, [3]] @ np.ones((1, 64)))


def test_a_gradient_that_is_computed_in_parts_is_the_same_to_the_bit(monkeypatch):
    call, cotangent = CALLS["two heads"], drawn(9, 1, 2, 4)

    def run(most):
        monkeypatch.setattr(duals, "_ROWS", most)
        Draw.reset()
        found = dual_gradients(call, cotangent, Draw.exact, Draw.read, duals.unit_draw)
        return (
            {name: [d.samples.tolist() for d in array.flat] for name, array in found.items()},
            Draw.peak,
            Draw.exact(3) * 7,
        )

    (whole, peak, after), (parts, peak_of_parts, after_parts) = run(10**6), run(13)
    assert parts == whole
    assert peak_of_parts == peak
    assert np.array_equal(after.samples, after_parts.samples)


def test_a_large_gradient_takes_little_memory():
    """The gradients of multi-head attention by 372 numbers."""
    width = 8
    tokens = {name: drawn(seed, 1, 4, width) for seed, name in enumerate(("query", "key", "value"))}
    params = projections(width)
    call = ("multi_head_attention", tokens, params, {"num_heads": 2}, {}, "output")
    Draw.reset()
    tracemalloc.start()
    dual_gradients(call, drawn(9, 1, 4, width), Draw.exact, Draw.read, duals.unit_draw)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 48 << 20
