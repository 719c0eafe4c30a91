"""A tensor that is left on the CPU is found in the catalogue, with the component, the operand and the line."""

import re
from dataclasses import replace

import pytest
from tests.support.runs import make_run

from goldformer.adapters import find_adapter, pretend_device
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.reports.remarks import make_remarks
from goldformer.conformance.reports.results import summarize

pytestmark = pytest.mark.skipif(pretend_device.register() is not None, reason="no pretend device here")

HEAD = 'import math, torch\nfrom goldformer import reference_impl\nARRAYS = "torch"\nDEVICES = ("cpu", "cuda")\n'
ATTENTION = (
    "def scaled_dot_product_attention(query, key, value, mask=None):\n"
    "    scores = query @ key.mT / math.sqrt(query.shape[-1])\n"
    "    if mask is not None:\n"
    "        scores = scores.masked_fill({hidden}, -math.inf)\n"
    "    weights = torch.softmax(scores, -1)\n"
    "    return weights @ value, weights\n"
)


@pytest.fixture
def findings(tmp_path, spec):
    """The findings on code, of the golden cases of one component on the pretend device and of device-hygiene."""

    def find(code, component, *, cases=True):
        path = tmp_path / "mine.py"
        path.write_text(HEAD + code, encoding="utf-8")
        bench = Bench(spec, find_adapter(str(path), spec), "float32", "pretend" if cases else "cpu")
        golden = [case for case in spec.cases_of(component) if case.error is None] if cases else []
        verdicts = [check_case(case, bench) for case in golden]
        verdicts += [] if cases else [check_property(spec.properties["device-hygiene"], component, bench)]
        return [(f.label, f.text.replace(str(path), "mine.py")) for f in diagnose(make_run(verdicts), spec)]

    return find


def test_a_mask_that_is_moved_to_the_cpu_is_found_where_it_meets_the_scores(findings):
    found = dict(findings(ATTENTION.format(hidden="~mask.cpu()"), "scaled_dot_product_attention"))
    place = (
        "device-mask, a mask is made on the CPU. In scaled_dot_product_attention the mask of masked_fill is on the CPU "
        "(mine.py:8, scaled_dot_product_attention). It explains "
    )
    assert found["Mistake found"].startswith(place)
    assert "Make the mask on the device of an input" in found["Mistake found"]
    assert "If it has no such variant" not in found


def test_device_hygiene_finds_a_mask_of_the_cpu_although_the_first_case_has_none(findings):
    found = dict(findings(ATTENTION.format(hidden="~mask.cpu()"), "scaled_dot_product_attention", cases=False))
    assert "(mine.py:8, scaled_dot_product_attention). It explains 1 of 1 failing checks." in found["Mistake found"]


def test_a_mask_that_follows_its_inputs_is_not_accused(findings):
    assert findings(ATTENTION.format(hidden="~mask"), "scaled_dot_product_attention", cases=False) == []


@pytest.mark.parametrize(
    ("code", "component", "label", "begins"),
    [
        (
            "def softmax(scores):\n    return torch.softmax(scores.cpu(), -1)\n",
            "softmax", "Mistake found",
            "device-result, the result comes back on the CPU, wherever the inputs are. In softmax output is on the CPU",
        ),
        (
            "def positional_encoding(x):\n    pe = reference_impl.sinusoid_table(*x.shape[1:])\n    return x + pe\n",
            "positional_encoding", "Possible causes",
            "pe-not-buffer, the table stays on the device where it was made. In positional_encoding the other of add "
            "is on the CPU (mine.py:7, positional_encoding).",
        ),
        (
            "def softmax(scores):\n    return torch.softmax(scores + torch.zeros(scores.shape[-1]), -1)\n",
            "softmax", "Possible causes", "device-const, ",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cases", [True, False])
def test_other_tensors_of_the_cpu_are_found_too(code, component, label, begins, cases, findings):
    text = dict(findings(code, component, cases=cases))[label]
    assert text.startswith(begins)


def test_what_would_fail_on_a_gpu_is_a_remark_where_nobody_asks_for_one(tmp_path, spec):
    path = tmp_path / "mine.py"
    code = HEAD.replace("DEVICES", "_DEVICES") + ATTENTION.format(hidden="~mask.cpu()")
    path.write_text(code, encoding="utf-8")
    bench = Bench(spec, find_adapter(str(path), spec), "float32", "cpu")
    prop, attention = spec.properties["device-hygiene"], "scaled_dot_product_attention"
    verdict = check_property(prop, attention, bench)
    # What is built of it departs for the same cause.
    run = make_run([verdict, replace(verdict, component="multi_head_attention")])
    assert list(diagnose(run, spec)) == []
    found = [f for f in make_remarks(run, summarize(run, spec, {attention}), spec) if "GPU" in f.label]
    assert [(f.label, f.mistakes) for f in found] == [("Right here, would fail on a GPU", ("device-mask",))]
    assert re.fullmatch(
        r"device-mask, a mask is made on the CPU\. In scaled_dot_product_attention the mask of masked_fill is on the "
        r"CPU \(.*mine\.py:8, scaled_dot_product_attention\)\. .*\. "
        r'Only --strict, --device or DEVICES = \("cpu", "cuda"\) fails it',
        found[0].text,
    )
