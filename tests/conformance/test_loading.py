"""Commands and Python load what they name: adapters as they are, other code by what its calls show."""

from __future__ import annotations

import json
import re
import sys
import textwrap

import jsonschema
import pytest
from click.testing import CliRunner
from torch import nn

import goldformer
from goldformer.adapters import DTYPES, AdapterError
from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.loading import Reading, load_implementation
from goldformer.conformance.reports.record_json import json_schema
from repository import REPOSITORY
from transcripts import PROGRAMS

NORM = (PROGRAMS / "norm_class.py").read_text(encoding="utf-8")


def run(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def write(tmp_path):
    def write(text, name="model.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    # Another test has a model.py of its own.
    with forget_modules(tmp_path):
        yield write


@pytest.mark.parametrize(
    "first", ["from __future__ import annotations\n", *([""] if sys.version_info >= (3, 14) else [])]
)
@pytest.mark.parametrize("annotation", ["ModelArgs", 'Float["d 1"]', "1 / 0"])
def test_annotations_need_not_be_evaluable(first, annotation, write, spec):
    text = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from config import ModelArgs

class LayerNorm(nn.Module):
    def __init__(self, args: NOTE, more: NOTE = None) -> NOTE:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(args.dim)), nn.Parameter(torch.zeros(args.dim))

    def forward(self, x: NOTE) -> NOTE:
        return nn.functional.layer_norm(x, x.shape[-1:], self.gain, self.shift)

def softmax(x: NOTE) -> NOTE:
    return torch.softmax(x, -1)
"""
    path = write(first + "import torch\nfrom torch import nn\n" + text.replace("NOTE", annotation))
    assert load_implementation(path, spec).functions.keys() == {"layer_norm", "softmax"}


@pytest.mark.parametrize("annotation", ["Args", "'Args'", "Args | int", "torch.zeros(3)", "np.zeros(3)"])
def test_an_annotation_may_be_any_value(annotation, write, spec):
    text = """
@dataclasses.dataclass
class Args:
    dim: int
    more: 'Missing["d 1"]' = None

class LayerNorm(nn.Module):
    def __init__(self, args: NOTE, more: 'Missing' = None):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(args.dim)), nn.Parameter(torch.zeros(args.dim))

    def forward(self, x: NOTE, mask: NOTE = None):
        return nn.functional.layer_norm(x, x.shape[-1:], self.gain, self.shift)
"""
    path = write("import dataclasses, torch, numpy as np\nfrom torch import nn\n" + text.replace("NOTE", annotation))
    assert load_implementation(path, spec).functions.keys() == {"layer_norm"}


class Called:
    def __init__(self, d_model):
        self.norm = nn.LayerNorm(d_model)

    def __call__(self, x):
        return self.norm(x)


def test_an_object_that_is_called_itself_is_one_too(spec):
    assert load_implementation(Called, spec).functions.keys() == {"layer_norm"}


SWITCHED = """
import math, torch

def scaled_dot_product_attention(query, key, value, is_causal=False):
    return torch.softmax(query @ key.mT / math.sqrt(key.size(-1)), -1) @ value
"""


def test_a_switch_costs_no_gradient_of_a_user(write, spec):
    gradient = "def scaled_dot_product_attention_gradient(query, key, value, mask=None, *, cotangent):\n    return {}\n"
    adapter = load_implementation(write(f"{SWITCHED}\n{gradient}"), spec)
    assert adapter.gradients.keys() == adapter.functions.keys() == {"scaled_dot_product_attention"}


def test_a_file_is_loaded_again_with_its_class(write, spec):
    adapter = load_implementation(write(NORM) + ":LayerNorm", spec, Reading())
    assert adapter.reload is not None
    assert adapter.reload().functions.keys() == {"layer_norm"}


@pytest.mark.parametrize("error", [AdapterError("which?"), goldformer.NonConformance("which?")])
def test_a_notebook_shows_the_message_and_no_traceback(error):
    assert error._render_traceback_() == [f"{type(error).__name__}: which?"]


def test_parts_of_a_layer_that_no_component_has_by_themselves_are_judged_with_it(spec):
    adapter = load_implementation(REPOSITORY / "tests" / "support" / "styles" / "llama_of_blocks.py", spec)
    assert {"decoder_only_layer", "decoder_only_model"} < adapter.functions.keys()
    assert any(hint.startswith("CausalSelfAttention is not checked: ") for hint in adapter.hints)
    assert adapter.unmatched == ()


FAST = """
class FastNorm(LayerNorm):
    def forward(self, x):
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.gain + self.shift

def keep(x):
    return x
"""


def test_two_classes_of_one_component_must_both_conform(write):
    path = write(f"{NORM}\n{FAST}\nBertNorm = LayerNorm\n")
    result = run("check", path)
    assert (result.exit_code, result.stdout.count("conforms (")) == (0, 2), result.output
    # Python and compare judge one, and do not call that the whole file.
    assert goldformer.check(path).partial == (f"{path}:FastNorm",)
    assert f"{path}: partial · 1 component" in run("compare", path).stdout
    # Another component that is asked for has no second class, and single checks are of the first.
    for words in (("--component", "softmax"), ("--case", "ln-distinct-sizes")):
        assert "\nFastNorm\n" not in run("check", path, *words).stdout
    # Nor is a second class of a component partial where another component is judged.
    rows = "def softmax(x, dim=-1):\n    return torch.softmax(x, dim)\n"
    result = run("check", write(f"{NORM}\n{FAST}\n{rows}"), "--component", "softmax")
    assert result.exit_code == 0, result.output


def test_a_choice_of_the_user_wins_over_that_of_a_part_of_a_file(write, spec):
    path = write(f"{NORM}\ndef softmax(x):\n    return torch.softmax(x, -1)\n")
    (mine,) = load_implementation(path, spec).conventions.items()
    assert mine == ("layer_norm.layer_norm_eps", "1e-6")
    result = run("check", path, "--convention", "layer_norm_eps=1e-5", "--component", "layer_norm")
    assert result.exit_code == 1, result.output
    assert "Option found: layer_norm_eps: 1e-6" in result.stdout


def test_the_second_class_of_a_component_is_accused_with_its_name(write, tmp_path):
    path, out = write(f"{NORM}\n{FAST.replace('correction=0', 'correction=1')}"), tmp_path / "out.json"
    result = run("check", path, "--json", str(out), "--junit", str(tmp_path / "out.xml"))
    assert result.exit_code == 1
    assert "Mistake found: ln-unbiased" in result.stdout
    assert f"Repeat: goldformer check {path}:FastNorm" in " ".join(result.stdout.split())
    data = json.loads(out.read_text(encoding="utf-8"))
    jsonschema.validate(data, json_schema())
    assert [found["outcome"] for found in data["implementations"]] == ["conforms", "fails"]
    # Two tests of the same names would be one to a build server.
    suites = re.findall('<testsuite name="(.*?)"', (tmp_path / "out.xml").read_text(encoding="utf-8"))
    assert suites == ["layer_norm", "FastNorm.layer_norm"]


def test_a_second_class_that_no_call_fits_is_partial_and_every_report_says_why(write, tmp_path):
    wrong = FAST.replace("torch.var_mean(x, -1, correction=0, keepdim=True)", "(x.sin(), x.cos())")
    reports = {f"--{kind}": tmp_path / f"out.{kind}" for kind in ("json", "junit", "html", "markdown")}
    result = run("check", write(f"{NORM}\n{wrong}"), *(str(word) for option in reports.items() for word in option))
    assert (result.exit_code, result.stdout.count("conforms (")) == (3, 1), result.output
    assert "partial: too few cases were judged of FastNorm." in result.stderr
    assert "\n\n" not in result.stdout
    why = "FastNorm is not checked: No call of FastNorm that was tried gives golden values"
    assert all(why in text for text in (result.stderr, *(path.read_text("utf-8") for path in reports.values())))
    assert '<skipped message="' in reports["--junit"].read_text("utf-8")


def test_ctrl_c_at_a_second_class_keeps_the_report_of_the_first_and_judges_no_third(write, tmp_path, monkeypatch):
    path, out, asked_for = write(f"{NORM}\n{FAST}\nclass LastNorm(FastNorm): ..."), tmp_path / "out.json", []

    def load(name, *arguments):
        asked_for.append(name)
        if len(asked_for) == 2:
            raise KeyboardInterrupt
        return load_implementation(name, *arguments)

    monkeypatch.setattr("goldformer.conformance.commands.check.load_implementation", load)
    result = run("check", path, "--json", str(out))
    assert (result.exit_code, len(asked_for)) == (130, 2), result.output
    first, second = json.loads(out.read_text(encoding="utf-8"))["implementations"]
    assert (first["outcome"], second["problem"], second["stopped"]) == ("conforms", "stopped", True)


GPT = """
import math, torch
from torch import nn

encode = lambda text: [ord(letter) for letter in text]

class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head, self.c_attn, self.attn_proj = n_head, nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_fc, self.c_proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)
        self.register_buffer("past", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        thirds = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in thirds)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.past[: x.shape[1], : x.shape[1]] == 0, -math.inf)
        x = x + self.attn_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.c_proj(self.c_fc(self.ln_2(x)).relu())

class GPT(nn.Module):
    def __init__(self, vocab_size, n_embd, n_head, n_layer, block_size=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList([Block(n_embd, n_head, block_size) for _ in range(n_layer)])
        self.ln_f, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))
"""


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("block_size), 1))", "Mistake found: mask-sees-next, the causal mask is one diagonal too wide"),
        ("block_size)).bool() | True)", "Mistake found: mask-not-inplace, the mask has no effect"),
    ],
)
def test_a_block_that_leaks_the_future_in_the_file_of_a_model_is_named(wrong, named, write):
    result = run("check", write(GPT.replace("block_size)))", wrong)))
    assert result.exit_code == 1
    assert "Fix first: encoder_layer" in result.stdout
    assert named in " ".join(result.stdout.split())


def test_a_class_too_large_to_be_built_is_refused_at_once(write, spec):
    path = write(
        """
        from torch import nn

        class Llama(nn.Module):
            def __init__(self, width=8192, depth=64):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x
        """
    )
    with pytest.raises(AdapterError):
        load_implementation(f"{path}:Llama", spec)


def test_each_part_of_a_file_has_its_own_dtypes(spec):
    adapter = load_implementation(REPOSITORY / "tests" / "support" / "styles" / "llama_of_complex_turns.py", spec)
    assert adapter.dtypes == DTYPES
    # Its logits are float32, whatever its weights are, and the golden values of float64 ask for more.
    assert adapter.own_dtypes["decoder_only_model"] == ("float32", "float16", "bfloat16")
    case = next(case for case in spec.cases_of("decoder_only_model") if not case.error and not case.cotangent)
    found = {dtype: check_case(case, Bench(spec, adapter, dtype, "cpu")) for dtype in ("bfloat16", "float64")}
    assert found["bfloat16"].status is Status.PASSED
    assert (found["float64"].status, found["float64"].reason) == (Status.SKIPPED, "dtype")
    assert found["float64"].message == "decoder_only_model works in float32, float16, bfloat16, not in float64"
