"""`goldformer.check`: whatever can be checked, the same verdicts as the command line, and nothing left behind."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from threadpoolctl import threadpool_info, threadpool_limits

import goldformer
from goldformer.adapters import AdapterError
from goldformer.adapters.arrays import CUDA_SWITCHES
from goldformer.conformance.api.printed import Printed
from goldformer.conformance.cli import main
from pages import CHROMIUM, Page, measure_in_chromium


def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def scaled_dot_product_attention(query, key, value, mask=None):
    scores = query @ key.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


@pytest.fixture(scope="module")
def wrong():
    return goldformer.check(scaled_dot_product_attention, conventions={"empty_row": "nan"})


def test_a_right_function_conforms():
    report = goldformer.check(softmax)
    assert (report.conforms, bool(report), report.failures) == (True, True, ())
    report.raise_for_failures()
    assert report.implementation.results(report.spec).keys() == {"softmax"}
    assert repr(report).startswith("✓ softmax: conforms")


def test_an_option_is_declared_by_the_argument_of_the_call():
    def token_embedding(ids, params):
        return params["table"][ids] * math.sqrt(params["table"].shape[1])

    report = goldformer.check(token_embedding)
    said = " ".join(str(report).split())
    assert 'Pass conventions={"embedding_scale": "sqrt_d_model"}, or fix it.' in said
    assert "the adapter" not in said
    assert goldformer.check(token_embedding, conventions={"embedding_scale": "sqrt_d_model"})


def test_a_wrong_function_is_told_its_mistake(wrong):
    assert not wrong
    assert {v.component for v in wrong.failures} == {"scaled_dot_product_attention"}
    assert {id_ for finding in wrong.findings for id_ in finding.mistakes} == {"scale-missing"}
    with pytest.raises(AssertionError, match=r"Mistake found: scale-missing, the scores are not divided by √d_k\."):
        wrong.raise_for_failures()


def test_the_text_is_short_and_begins_with_the_finding(wrong):
    first, *lines = repr(wrong).splitlines()
    assert re.fullmatch(r"✗ scaled_dot_product_attention: [1-9]\d of \d{3} checks pass \(float32\)", first)
    code = ["  Instead of: softmax(query @ key.T)", "  Write: softmax(query @ key.T / sqrt(d_k))"]
    assert lines[:3] == [*code, "  Fix: Divide QKᵀ by √d_k before the softmax."]
    assert lines[3].startswith("  Mistake found: scale-missing")
    assert any(line.startswith("  First wrong: weights[0, 0]: expected 0.397954285, actual 0.42593") for line in lines)
    assert "  Clause: SDPA-2 MUST: Scores are divided by √d_k" in lines
    assert len(lines) < 20


def norm_without_eps(x, *, params):
    return x / x.square().mean(-1, keepdim=True).sqrt() * params["gamma"]


def mask_without_window(*, q_seq, kv_seq, window):
    return torch.ones(q_seq, kv_seq, dtype=torch.bool).tril()


def mask_of_ones(*, q_seq, kv_seq):
    return torch.ones(q_seq, kv_seq, dtype=torch.bool)


@pytest.mark.parametrize(
    ("function", "component", "says"),
    [
        (norm_without_eps, "rms_norm", "Eps is left out, or 0. It reproduces your output in 14 of 14"),
        (mask_without_window, "sliding_window_mask", "window-sign, the window is ignored, as by a wrong sign, so that"),
        (mask_of_ones, "causal_mask", "The causal mask hides nothing. It reproduces"),
    ],
)
def test_what_is_left_out_is_not_described_as_if_it_were_there(function, component, says):
    (found,) = (f.text for f in goldformer.check(function, component).findings if f.label == "Mistake found")
    assert found.startswith(says)


def test_what_only_a_command_line_has_is_said_as_python_has_it(wrong):
    def softmax(scores):
        powers = np.exp(scores - scores.max(-1, keepdims=True)) if scores.size else scores
        return powers / powers.sum(-1, keepdims=True)

    accepting = goldformer.check(softmax)
    for report in (wrong, accepting):
        card = re.sub("<style>.*?</style>", "", report._repr_html_(), flags=re.DOTALL)
        for text in (str(report), repr(report), card, *(finding.text for finding in report.findings)):
            assert re.findall(r"(?<![\w-])-v\b|--(?!strict, or strict=True in Python)\w+", text) == []
    assert " of scaled_dot_product_attention (report.failures has each)" in str(wrong)
    assert " notes (report.findings lists all)" in str(wrong)
    assert "(report.findings shows each; only --strict, or" in " ".join(str(accepting).split())


def test_a_failing_check_is_repeated_by_its_line(wrong):
    (line,) = [line for line in repr(wrong).splitlines() if "Repeat: " in line]
    call = line.partition("Repeat: ")[2]
    assert call.endswith("dtypes='float32', conventions={'empty_row': 'nan'})")
    again = eval(call)  # it must run as it stands
    assert [v.check for v in again.failures] == ["sdpa-walkthrough-3x2"]


def test_the_card_has_the_same_and_runs_no_script(wrong):
    card = wrong._repr_html_()
    for part in ("scale-missing", "Divide QKᵀ by √d_k", "0.397954285", "SDPA-2 MUST", "https://github.com/"):
        assert part in card, part
    assert "$$" not in card
    assert "<script" not in card
    assert "onclick" not in card


#: What JupyterLab and the pages of nbconvert say about lists and code in an output.
JUPYTERLAB = """
.jp-OutputArea-output dl, .jp-OutputArea-output dt, .jp-OutputArea-output dd { display: block; }
.jp-OutputArea-output dl { width: 100%; overflow: hidden; padding: 0; margin: 0; }
.jp-OutputArea-output dt { font-weight: bold; float: left; width: 20%; padding: 0; margin: 0; }
.jp-OutputArea-output dd { float: left; width: 80%; padding: 0; margin: 0; }
.jp-OutputArea-output pre { border: none; margin: 0; padding: 0; word-break: break-all; white-space: pre-wrap; }
.jp-RenderedHTMLCommon :not(pre) > code { background-color: red; padding: 1px 5px; }
"""


def test_the_card_takes_back_what_a_notebook_says_about_lists_and_code(wrong):
    style = " ".join(Page(wrong._repr_html_()).style.split())
    assert "dl, .goldformer-card dt, .goldformer-card dd { float: none; width: auto; padding: 0; }" in style
    assert ".goldformer-card :not(pre) > code { padding: 0; background: transparent; }" in style


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
@pytest.mark.parametrize(("width", "beside"), [(1280, True), (400, False)])
def test_the_card_is_readable_in_jupyterlab(wrong, tmp_path, width, beside):
    output = f'<div class="jp-OutputArea-output jp-RenderedHTMLCommon">{wrong._repr_html_()}</div>'
    lists = (
        "[...d.querySelectorAll('dt')].map(t => { const r = d.createRange(); r.selectNodeContents(t);"
        "const label = r.getBoundingClientRect(), text = t.nextElementSibling.getBoundingClientRect();"
        "return [label.height < 30, text.left >= label.right, text.width > 300]; })"
    )
    plain = "[...d.querySelectorAll('code:not(.fix)')]"
    code = f"{plain}.map(c => getComputedStyle(c).backgroundColor + getComputedStyle(c).padding)"
    measured, _ = measure_in_chromium(
        f"<!doctype html><style>{JUPYTERLAB}</style>{output}", tmp_path, f"JSON.stringify([{lists}, {code}])", width
    )
    rows, codes = json.loads(measured)
    assert rows == [[True, beside, True]] * 6, "each label is on one line, next to its text or above it"
    assert {*codes} == {"rgba(0, 0, 0, 0)0px"}


def test_what_the_code_prints_is_shown_and_is_no_markup(capsys):
    def softmax(scores):
        print("<script>alert(1)</script>\x1b[31m")
        print("to stderr", file=sys.stderr)
        return scores

    report = goldformer.check(softmax, cases="sm-one-row-by-hand")
    assert capsys.readouterr() == ("", "")
    assert report.printed.startswith("<script>alert(1)</script>\x1b[31m\nto stderr\n")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m" in report._repr_html_()
    assert "It printed:\n    <script>alert(1)</script>\\x1b[31m\n    to stderr" in repr(report)


def test_only_the_beginning_of_a_long_output_is_kept():
    with Printed() as printed:
        for _ in range(3):
            print("x" * 9_999)
    assert printed.text == "x" * 9_999 + "\n" + "\n… 20000 more characters"


def test_a_report_is_written_in_three_forms(wrong):
    (found,) = json.loads(wrong.to_json())["implementations"]
    assert len(found["failures"]) == len(wrong.failures)
    assert "scale-missing" in wrong.to_markdown()
    assert wrong.to_html().startswith("<!doctype html>")


# what can be checked


def test_a_component_is_named_if_the_function_is_not():
    def my_attention(query, key, value, mask=None):
        return scaled_dot_product_attention(query, key, value, mask)

    report = goldformer.check(my_attention, "scaled_dot_product_attention", conventions={"empty_row": "nan"})
    assert {id_ for finding in report.findings for id_ in finding.mistakes} == {"scale-missing"}
    assert report.implementation.title == "my_attention"


def attend(q, k, v, m):
    scores = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    if m is not None:
        scores = np.where(m, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


def test_a_function_under_other_names_is_inferred_from_its_calls():
    report = goldformer.check(attend)
    assert report.conforms
    assert (
        "Note: scaled_dot_product_attention is called as attend(q=query, k=key, v=value); mask: as it comes, "
        in flat(repr(report))
    )


def test_a_function_with_the_name_of_its_component_and_other_arguments_is_inferred():
    def softmax(z):
        powers = np.exp(z - z.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)

    def layer_norm(x, weight, bias):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + x.dtype.type(1e-5)) * weight + bias

    assert goldformer.check(softmax).conforms
    assert goldformer.check(layer_norm).conforms


def test_a_function_that_nothing_infers_is_asked_for_its_component():
    def attend(first, second):
        return first

    says = "No call of attend that was tried gives golden values"
    with pytest.raises(AdapterError, match=rf"^{says}.* pass --component, or component= in Python$"):
        goldformer.check(attend)


def test_a_function_whose_name_is_nearly_that_of_a_component_is_asked_for_it():
    def softmx(x):
        return x

    with pytest.raises(AdapterError) as caught:
        goldformer.check(softmx)
    assert str(caught.value).startswith("No call of softmx that was tried gives golden values, ")
    assert str(caught.value).endswith(
        ". If softmx is softmax, pass --component softmax, or component='softmax' in Python"
    )


def test_an_unknown_component_is_guessed():
    with pytest.raises(ValueError, match="component") as caught:
        goldformer.check(lambda x: x, "softmaxx")
    assert str(caught.value) == "component softmaxx: did you mean softmax?"


class SelfAttention(torch.nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.width = n_heads, d_model // n_heads
        self.to_q, self.to_k, self.to_v, self.out = (torch.nn.Linear(d_model, d_model) for _ in range(4))

    def divide(self, scores):
        return scores / self.width**0.5

    def forward(self, x, mask=None):
        batch, seq, _ = x.shape
        q, k, v = (
            layer(x).view(batch, seq, self.n_heads, self.width).transpose(1, 2)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        scores = self.divide(q @ k.transpose(-2, -1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, -1))


class Undivided(SelfAttention):
    def divide(self, scores):
        return scores


def test_a_choice_that_only_the_author_can_make_is_asked_for_functions_too():
    def attend(q, k, v, m):
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(m, -torch.inf)
        return scores.softmax(-1) @ v

    with pytest.raises(AdapterError) as caught:
        goldformer.check(attend, "scaled_dot_product_attention")
    said = (
        "fit attend as scaled_dot_product_attention only if True in its mask hides a key, and nothing in its code says"
    )
    assert said in str(caught.value)
    assert goldformer.check(attend, "scaled_dot_product_attention", accept="ignore").conforms


@pytest.mark.parametrize("what", [SelfAttention, SelfAttention(12, 3)], ids=["class", "object"])
def test_the_adapter_of_a_class_is_inferred_and_shown(what):
    report = goldformer.check(what)
    assert report.conforms
    assert (
        "Note: fused_multi_head_attention is called as SelfAttention(d_model=width, n_heads=heads)(x); mask: "
        in flat(repr(report))
    )


def test_a_mistake_in_a_class_is_named():
    report = goldformer.check(Undivided)
    assert not report
    assert "Mistake found: scale-missing" in str(report)
    assert "Note: fused_multi_head_attention is called as Undivided(" in flat(repr(report))


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (
            torch.nn.Linear,
            "Linear has arguments or parameters that no component has. Its arguments are (input): infer a part of it, "
            "such as its layer or its attention. Nothing says the meaning of out_features in its constructor: a "
            "subclass whose __init__ takes its sizes by usual names can. `goldformer new` writes an adapter",
        ),
        (
            torch.nn.Sigmoid(),
            "No call of Sigmoid that was tried gives golden values, with a known mistake or without. ",
        ),
        (3, "an adapter is inferred for an nn.Module class, an object of one, or a function, not for 3"),
    ],
    ids=["layer", "object", "number"],
)
def test_what_cannot_be_inferred_is_said(what, says):
    with pytest.raises(AdapterError) as caught:
        goldformer.check(what)
    assert str(caught.value).startswith(says)


def test_a_function_without_arguments_is_told_which_ones_are_usual():
    with pytest.raises(AdapterError, match=r"^zzz has arguments or parameters that no component has") as caught:
        goldformer.check(types.FunctionType((lambda: 0).__code__, {}, "zzz"))
    assert "give them usual names, such as query, key, value and mask" in str(caught.value)


def test_the_only_argument_of_a_function_may_have_another_name():
    assert goldformer.check(lambda z: torch.softmax(z, -1), "softmax", arrays="torch").conforms


def test_a_mapping_has_several_components():
    def layer_norm(x, params):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * params["gamma"] + params["beta"]

    report = goldformer.check({"softmax": softmax, "layer_norm": layer_norm})
    assert {name: r.conforms for name, r in report.implementation.results(report.spec).items()} == {
        "softmax": True,
        "layer_norm": True,
    }
    only = goldformer.check({"softmax": softmax, "layer_norm": layer_norm}, "softmax")
    assert only.implementation.results(only.spec).keys() == {"softmax"}


def test_the_only_argument_may_have_another_name_in_a_mapping_and_in_a_module():
    def stable_softmax(x, axis=-1):
        powers = np.exp(x - x.max(axis=axis, keepdims=True))
        return powers / powers.sum(axis=axis, keepdims=True)

    module = types.ModuleType("course_functions")
    vars(module)["softmax"] = stable_softmax
    for what in ({"softmax": stable_softmax}, module):
        assert goldformer.check(what).conforms


def test_an_unknown_name_of_a_mapping_is_guessed():
    with pytest.raises(ValueError, match=r"the mapping has sofmax: did you mean softmax\?"):
        goldformer.check({"sofmax": softmax})


def test_a_partial_call_and_a_compiled_function_are_functions():
    def softmax(scale, scores):
        return globals()["softmax"](scale * scores)

    assert goldformer.check(functools.partial(softmax, np.float32(1)))
    assert not goldformer.check(functools.partial(softmax, np.float32(2)))


def test_a_module_and_its_path_get_the_verdicts_of_the_command_line(adapter_file):
    source = "import numpy as np\n\nARRAYS = 'numpy'\n\n\ndef softmax(scores):\n    return np.tanh(scores)\n"
    path = adapter_file(source)
    module = types.ModuleType("mine")
    exec(source, vars(module))
    result = CliRunner().invoke(main, ["check", path, "--component", "softmax", "--json", "-"])
    expected = [(v["check"], v["status"], v["message"]) for v in json.loads(result.stdout)["verdicts"]]
    for what in (module, path, Path(path)):
        report = goldformer.check(what, "softmax")
        assert [(v.check, v.status.value, v.message) for v in report.implementation.verdicts] == expected


def test_an_object_that_declares_its_arrays_is_an_adapter():
    report = goldformer.check(types.SimpleNamespace(ARRAYS="numpy", softmax=softmax, softmx=softmax), "softmax")
    assert report
    assert report.implementation.title == "SimpleNamespace"


def test_a_misspelt_name_is_told():
    report = goldformer.check(types.SimpleNamespace(ARRAYS="numpy", softmax=softmax, layer_nrm=softmax), "softmax")
    assert "  Note: layer_nrm is no component: did you mean layer_norm?" in repr(report).splitlines()
    assert "Note: layer_nrm is no component" in report._repr_html_()


def test_a_check_of_a_mapping_is_repeated_by_its_line():
    def wrong(scores):
        return scores

    report = goldformer.check({"softmax": wrong}, cases="sm-one-row-by-hand")
    (line,) = [line for line in repr(report).splitlines() if "Repeat: " in line]
    call = line.partition("Repeat: ")[2]
    assert call == "goldformer.check(wrong, 'softmax', cases='sm-one-row-by-hand', dtypes='float32')"
    assert not eval(call)


def test_a_built_in_and_a_process_are_named():
    assert goldformer.check("textbook", "softmax", dtypes="all")
    twice = goldformer.check("textbook", "softmax", dtypes=["float32", "float32"], cases="sm-one-row-by-hand")
    assert len(twice.implementation.verdicts) == 1
    command = f"cmd: {sys.executable} -m goldformer serve textbook"
    assert goldformer.check(command, "softmax")


def test_nothing_to_judge_is_no_success():
    report = goldformer.check(softmax, dtypes="bfloat16")
    assert not report
    assert "✗" not in repr(report)
    assert repr(report).startswith("! softmax: nothing was checked: ")
    with pytest.raises(goldformer.NonConformance, match="not in bfloat16"):
        report.raise_for_failures()


def test_too_few_cases_are_no_success_unless_they_are_allowed():
    def causal_mask(*, q_seq, kv_seq):
        if q_seq != kv_seq:
            raise NotImplementedError("square")
        return np.tri(q_seq, dtype=bool)

    report = goldformer.check(causal_mask, arrays="numpy")
    assert (bool(report), report.partial, report.failures) == (False, ("causal_mask",), ())
    assert repr(report).splitlines()[:2] == [
        "◐ causal_mask: partial · 1 component · 8 of 13 cases apply · too few in 1 component (float32)",
        "  Partial: causal_mask, 8 of 13 cases that the declared options admit were judged, and at least 10",
    ]
    assert 'class="goldformer-card partial"' in report._repr_html_()
    with pytest.raises(goldformer.NonConformance, match="partial: nothing wrong was found in 8 of 13 cases"):
        report.raise_for_failures()
    report.raise_for_failures(allow_partial=True)
    with pytest.raises(goldformer.NonConformance):
        goldformer.check(lambda scores: scores, "softmax").raise_for_failures(allow_partial=True)
    # Who chooses cases is not told that they are few.
    assert goldformer.check(causal_mask, arrays="numpy", cases=("mask-causal-4", "mask-causal-2x5"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtypes": "float23"}, "dtypes float23: did you mean float32?"),
        ({"dtypes": ()}, "dtypes is empty: name one of float64, float32, float16, bfloat16"),
        ({"cases": "sm-one-row-by-hanq"}, "cases sm-one-row-by-hanq: did you mean"),
        ({"properties": "softmax-shft"}, "properties softmax-shft: did you mean"),
        ({"arrays": "tensorflow"}, "arrays tensorflow: known are torch, numpy, jax"),
        ({"timeout": -1}, "timeout is -1: give more than 0 seconds"),
        ({"arrays": torch}, "arrays <module 'torch' from "),
        ({"accept": "ignored"}, "accept ignored: did you mean ignore?"),
    ],
)
def test_an_unknown_word_is_guessed(options, says):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the wording is compared below
        goldformer.check(softmax, **options)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("what", "options", "says"),
    [
        ("softmax", {"component": softmax}, "component is function: give the name of a component as text, such as "),
        (softmax, {"component": ["softmax"]}, "component is list: give the name of a component as text"),
        (np.zeros(3), {"component": "softmax"}, "what is ndarray, a result: give the function that computes it; "),
        (softmax, {"dtypes": np.float32}, "dtypes is <class 'numpy.float32'>: give a name as text, or several in a"),
        (softmax, {"dtypes": [torch.float32]}, "dtypes is torch.float32: give a name as text"),
        (softmax, {"cases": None}, "cases is None: give a name as text, or several in a list"),
        (softmax, {"properties": 3}, "properties is 3: give a name as text"),
        (softmax, {"accept": None}, "accept is None: give a name as text"),
        (softmax, {"device": torch.device("cpu")}, "device is device(type='cpu'): give its name as text, such as"),
        (softmax, {"timeout": "3"}, "timeout is '3': give seconds"),
        (softmax, {"strict": "yes"}, "strict is 'yes': give True or False"),
    ],
)  # fmt: skip
def test_an_argument_of_another_type_is_named(what, options, says):
    with pytest.raises(TypeError) as caught:
        goldformer.check(what, **options)
    assert str(caught.value).startswith(says)


def test_a_component_that_is_no_function_is_named():
    with pytest.raises(AdapterError, match="the mapping's softmax is 3: give a function"):
        goldformer.check({"softmax": 3})


def test_an_unknown_convention_is_refused():
    with pytest.raises(AdapterError, match="CONVENTIONS has 'empty_rows'"):
        goldformer.check(softmax, conventions={"empty_rows": "nan"})


# nothing is left behind


def interrupt(scores):
    print("before")
    raise KeyboardInterrupt


def count_threads():
    return {one["num_threads"] for one in threadpool_info()} | {torch.get_num_threads()}


def test_an_interrupt_stops_the_check_and_restores_everything():
    threads, stdout, cuda = torch.get_num_threads(), sys.stdout, torch.backends.cuda.matmul
    allowed = [getattr(cuda, name) for name in CUDA_SWITCHES]
    try:
        with threadpool_limits(2):
            torch.set_num_threads(2)
            for name in CUDA_SWITCHES:
                setattr(cuda, name, True)
            with pytest.raises(KeyboardInterrupt):
                goldformer.check(interrupt, "softmax", arrays="torch")
            restored = {getattr(cuda, name) for name in CUDA_SWITCHES}
            assert (count_threads(), restored, sys.stdout) == ({2}, {True}, stdout)
    finally:
        torch.set_num_threads(threads)
        for name, value in zip(CUDA_SWITCHES, allowed, strict=True):
            setattr(cuda, name, value)


def test_cuda_computes_in_no_fewer_bits_than_the_dtype_has_while_it_is_judged():
    seen = []

    def softmax(scores):
        seen.append([getattr(torch.backends.cuda.matmul, name) for name in CUDA_SWITCHES])
        return torch.softmax(scores, -1)

    goldformer.check(softmax, "softmax", arrays="torch")
    assert {tuple(values) for values in seen} == {(False, False, False)}


def test_an_interrupt_ends_the_process_that_was_started(monkeypatch):
    closed = []

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("goldformer.conformance.api.checking.judge_implementation", stop)
    from goldformer.adapters.process import client

    original = client.Client.close

    def close(self):
        closed.append(self)
        original(self)

    monkeypatch.setattr(client.Client, "close", close)
    with pytest.raises(KeyboardInterrupt):
        goldformer.check(f"cmd: {sys.executable} -m goldformer serve textbook", "softmax")
    assert closed


def test_the_files_of_an_adapter_are_read_again(adapter_file, tmp_path):
    (tmp_path / "parts").mkdir()
    right = "import numpy as np\n\n\ndef run(x):\n    return np.exp(x) / np.exp(x).sum(-1)[..., None]\n"
    path = adapter_file('from parts.soft import run as softmax_of\n\nARRAYS = "numpy"\n\n\ndef softmax(scores):\n'
                        "    return softmax_of(scores)\n")  # fmt: skip
    adapter_file(right, "parts/soft.py")
    before = list(sys.path)
    one = "sm-one-row-by-hand"
    assert goldformer.check(path, cases=one)
    assert sys.path == before
    adapter_file("def run(x):\n    return x\n", "parts/soft.py")
    assert not goldformer.check(path, cases=one)


def test_importing_goldformer_imports_nothing_heavy():
    code = "import sys, goldformer; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"numpy", "torch", "click", "pydantic", "rich", "goldformer.spec"} & set(loaded)
    assert {*goldformer.__all__} <= {name for name in goldformer.__all__ if hasattr(goldformer, name)}


def test_the_output_of_a_notebook_goes_on_after_a_check():
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        goldformer.check(softmax, cases="sm-one-row-by-hand")
        print("after")
    assert stream.getvalue() == "after\n"
