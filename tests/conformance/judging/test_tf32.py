"""Products whose factors are rounded to eleven bits, as GPUs offer them: named, and allowed by --tf32."""

from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from goldformer.adapters.protocol import Adapter
from goldformer.conformance.cli import main
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.spec.oracle.rounding import TF32, Rounding, is_half


def round_factor(x):
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(mantissa, 11)), exponent - 11).astype(x.dtype)


def multiply(a, b):
    return round_factor(a) @ round_factor(b)


def attend(query, key, value, mask=None):
    scores = multiply(query, key.swapaxes(-1, -2)) / query.dtype.type(query.shape[-1] ** 0.5)
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(scores.dtype).min)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return multiply(weights / weights.sum(-1, keepdims=True), value)


class Network:
    """In another style: a class, with the bias folded into the sum."""

    def __init__(self, params):
        self.params = params

    def linear(self, x, i):
        y = multiply(x, self.params[f"w_{i}"])
        return y + self.params[f"b_{i}"] if f"b_{i}" in self.params else y

    def __call__(self, x):
        return self.linear(np.maximum(self.linear(x, 1), 0), 2)


ADAPTER = SimpleNamespace(
    ARRAYS="numpy",
    NAME="mine",
    scaled_dot_product_attention=attend,
    feed_forward=lambda x, *, params: Network(params)(x),
)


@pytest.fixture
def judge(spec):
    adapter = Adapter.from_object(ADAPTER, "mine.py", spec)
    cases = [
        c for c in spec.cases_of("scaled_dot_product_attention") + spec.cases_of("feed_forward") if c.error is None
    ]
    return lambda **named: {c.id: check_case(c, Bench(spec, adapter, "float32", "cpu", Policy(**named))) for c in cases}


def test_it_fails_where_it_is_not_allowed_and_passes_where_it_is(judge):
    strictly, allowed = judge(), judge(tf32=True)
    failing = [id_ for id_, verdict in strictly.items() if verdict.bad]
    assert len(failing) > 40
    assert [id_ for id_, verdict in allowed.items() if verdict.bad] == []
    passed = [verdict for verdict in allowed.values() if verdict.status is Status.PASSED]
    assert len(passed) > 60
    assert max(verdict.ratio or 0 for verdict in passed) < 0.9
    assert any("--tf32" in verdict.reproduce for verdict in passed)


def test_a_mistake_still_fails_where_it_is_allowed(spec):
    def forget_scale(query, key, value, mask=None):
        return attend(query * query.dtype.type(query.shape[-1] ** 0.5), key, value, mask)

    functions = SimpleNamespace(ARRAYS="numpy", NAME="mine", scaled_dot_product_attention=forget_scale)
    bench = Bench(spec, Adapter.from_object(functions, "mine.py", spec), "float32", "cpu", Policy(tf32=True))
    assert check_case(spec.cases["sdpa-distinct-sizes"], bench).bad
    assert check_case(spec.cases["sdpa-size-keys-513"], bench).bad


def test_only_products_of_float32_are_judged_by_it(judge, spec):
    bench = Bench(spec, Adapter.from_object(ADAPTER, "mine.py", spec), "float64", "cpu", Policy(tf32=True))
    assert bench.rounds_to == "float64"
    rounding = Rounding.of(TF32)
    assert (rounding.results, rounding.factors) == (2.0**-24, 2.0**-11)
    assert not is_half(TF32)


def test_the_report_names_it_and_says_how_it_is_allowed_or_switched_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = (
        "import numpy as np\nARRAYS = 'numpy'\n"
        "def cut(x):\n    m, e = np.frexp(x)\n    return np.ldexp(np.rint(np.ldexp(m, 11)), e - 11).astype(x.dtype)\n"
        "def feed_forward(x, *, params):\n"
        "    h = np.maximum(cut(x) @ cut(params['w_1']) + params.get('b_1', 0), 0).astype(x.dtype)\n"
        "    return (cut(h) @ cut(params['w_2']) + params.get('b_2', 0)).astype(x.dtype)\n"
    )
    (tmp_path / "mine.py").write_text(source)
    run = CliRunner().invoke(main, ["check", "mine.py"])
    said = " ".join(run.output.split())
    assert run.exit_code == 1
    assert "Mistake found: products-in-tf32" in said
    assert "--tf32 judges by its rounding" in said
    assert CliRunner().invoke(main, ["check", "mine.py", "--tf32"]).exit_code == 0
