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
from goldformer.conformance.api.printed import keep_printed
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


def norm_without_eps(x, *, params):
    return x / x.square().mean(-1, keepdim=True).sqrt() * params["gamma"]


def mask_without_window(*, q_seq, kv_seq, window):
    return torch.ones(q_seq, kv_seq, dtype=torch.bool).tril()


def mask_of_ones(*, q_seq, kv_seq):
    return torch.ones(q_seq, kv_seq, dtype=torch.bool)


@pytest.mark.parametrize(
    ("function", "component", "says"),
    [
        (norm_without_eps, "rms_norm", "rms-eps-missing, eps is left out, so that small rows are normalised too."),
        (mask_without_window, "sliding_window_mask", "window-sign, the window is ignored, as by a wrong sign, so that"),
        (mask_of_ones, "causal_mask", "causal-of-ones, the causal mask hides nothing. It reproduces"),
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


def test_only_the_beginning_of_a_long_output_is_kept():
    with keep_printed() as printed:
        for _ in range(3):
            print("x" * 9_999)
    assert printed.text == "x" * 9_999 + "\n" + "\n… 20000 more characters"


def test_a_report_is_written_in_three_forms(wrong):
    found = json.loads(wrong.to_json())
    assert len([v for v in found["verdicts"] if v["status"] == "failed"]) == len(wrong.failures)
    assert "scale-missing" in wrong.to_markdown()
    assert wrong.to_html().startswith("<!doctype html>")


# what can be checked


def test_a_function_whose_name_is_nearly_that_of_a_component_is_asked_for_it():
    def softmx(x):
        return x

    with pytest.raises(AdapterError) as caught:
        goldformer.check(softmx)
    assert str(caught.value).startswith("No call of softmx that was tried gives golden values, ")
    assert str(caught.value).endswith(
        ". If softmx is softmax, pass --component softmax, or component='softmax' in Python"
    )


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


def test_a_function_without_arguments_is_told_which_ones_are_usual():
    with pytest.raises(AdapterError, match=r"^zzz has arguments or parameters that no component has") as caught:
        goldformer.check(types.FunctionType((lambda: 0).__code__, {}, "zzz"))
    assert "give them usual names, such as query, key, value and mask" in str(caught.value)


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
        assert [(v.check, v.status.value, v.message) for v in report.record.verdicts] == expected


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
    assert len(twice.record.verdicts) == 1
    command = f"cmd: {sys.executable} -m goldformer serve textbook"
    assert goldformer.check(command, "softmax")


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
