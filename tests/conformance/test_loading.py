"""Commands and Python load what they name: adapters as they are, other code by what its calls show."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import goldformer
from goldformer.adapters import DTYPES, AdapterError
from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.loading import Reading, list_own, load_implementation
from repository import REPOSITORY

ATTENTION = """
import math, torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, q, k, v, mask=None):
        q, k, v = self.split(self.w_q(q)), self.split(self.w_k(k)), self.split(self.w_v(v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.w_o((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))
"""
NORM = """
import torch
from torch import nn

class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.gain, self.shift, self.eps = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model)), eps

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.gain + self.shift
"""
SOFTMAX = """
import torch

def my_softmax(z):
    e = torch.exp(z - z.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)
"""


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


def test_the_classes_and_functions_of_a_file_are_one_adapter(write, spec):
    path = write(ATTENTION + NORM + SOFTMAX)
    adapter = load_implementation(path, spec)
    assert adapter.functions.keys() == {"multi_head_attention", "layer_norm", "softmax"}
    assert adapter.conventions == {"multi_head_attention.biases": "all", "layer_norm.layer_norm_eps": "1e-6"}
    assert adapter.origin == adapter.name == path
    assert list_own(path, adapter, spec) == ()
    assert goldformer.check(path, "layer_norm").conforms


def test_one_class_of_a_file_is_named(write, spec):
    name = write(ATTENTION + NORM) + ":LayerNorm"
    adapter = load_implementation(name, spec)
    assert adapter.functions.keys() == {"layer_norm"}
    assert list_own(name, adapter, spec) == ("layer_norm",)
    assert goldformer.check(name).conforms


def make_notebook(*cells):
    listed = [{"cell_type": "code", "metadata": {}, "source": cell} for cell in cells]
    return {"cells": listed, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_a_notebook_has_classes_too(tmp_path, spec):
    cells = [ATTENTION, "model = MultiHeadAttention(8, 2)\nprint(model)", NORM + SOFTMAX]
    path = tmp_path / "lab.ipynb"
    path.write_text(json.dumps(make_notebook(*cells)))
    assert load_implementation(path, spec).functions.keys() == {"multi_head_attention", "layer_norm", "softmax"}
    # That True in its mask keeps a key is read in its code.
    adapter = load_implementation(f"{path}:MultiHeadAttention", spec)
    assert "mask: as it comes, True = may attend" in adapter.hints[0]


@pytest.mark.parametrize("name", ["model.py", "lab.ipynb"])
def test_methods_that_a_class_gets_later_are_its_own(name, tmp_path, spec):
    head, body = ATTENTION.split("    def split(")
    methods = (
        textwrap.dedent("    def split(" + body)
        + "MultiHeadAttention.split = split\nMultiHeadAttention.forward = forward"
    )
    text = json.dumps(make_notebook(head, methods)) if name == "lab.ipynb" else f"{head}\n{methods}"
    (tmp_path / name).write_text(text)
    with forget_modules(tmp_path):
        adapter = load_implementation(tmp_path / name, spec)
    assert adapter.functions.keys() == {"multi_head_attention"}
    assert adapter.unmatched == ()
    # That True in its mask keeps a key is read in the code of forward.
    assert any("mask: as it comes, True = may attend" in hint for hint in adapter.hints)


def test_a_class_without_a_base_is_called_as_a_module(write, spec):
    path = write(ATTENTION.replace("(nn.Module)", "").replace("        super().__init__()\n", ""))
    adapter = load_implementation(f"{path}:MultiHeadAttention", spec)
    assert adapter.functions.keys() == {"multi_head_attention"}
    assert run("infer", f"{path}:MultiHeadAttention", "--out", path.replace("model", "adapter")).exit_code == 0
    assert load_implementation(path.replace("model", "adapter"), spec).functions.keys() == {"multi_head_attention"}


class Called:
    def __init__(self, d_model):
        self.norm = nn.LayerNorm(d_model)

    def __call__(self, x):
        return self.norm(x)


def test_an_object_that_is_called_itself_is_one_too(spec):
    assert load_implementation(Called, spec).functions.keys() == {"layer_norm"}


def test_a_file_with_a_component_twice_says_which_is_checked(write, spec):
    path = write(NORM + NORM.replace("LayerNorm", "OtherNorm"))
    adapter = load_implementation(path, spec)
    said = f"OtherNorm is not checked: LayerNorm is layer_norm too. Check it by {path}:OtherNorm"
    assert adapter.hints[-1] == said


def test_a_file_without_anything_to_check_says_why(write, spec):
    path = write(
        """
        from torch import nn

        class Rotary(nn.Module):
            def __init__(self, dim):
                super().__init__()

            def apply_rotary_emb(self, x):
                return x

            def forward(self, x):
                return self.apply_rotary_emb(x)
        """
    )
    with pytest.raises(AdapterError) as caught:
        load_implementation(path, spec)
    assert str(caught.value).startswith(f"{path}: none of its functions and classes could be checked\n  Rotary is not")
    assert "Rotary has arguments or parameters that rotary_embedding has not" in str(caught.value)
    with pytest.raises(AdapterError, match=r"it defines no function and no class$"):
        load_implementation(write("x = 1", "empty.py"), spec)


def test_a_file_of_which_nothing_can_be_checked_says_why_of_each(write, spec):
    path = write("""
        class KVCache:
            pass

        def _top_k(logits, k):
            return logits

        def forward(self, x):
            return x
    """)
    with pytest.raises(AdapterError) as caught:
        load_implementation(path, spec)
    assert str(caught.value).splitlines() == [
        f"{path}: none of its functions and classes could be checked",
        "  KVCache is not checked: it is a class without forward or __call__",
        "  _top_k is not checked: its name begins with _, as a helper's does. FILE:_top_k checks it",
        "  forward is not checked: it takes self, as a method does",
    ]


def test_a_class_method_that_reads_a_model_of_another_library_says_nothing_of_the_class(write, spec):
    text = ATTENTION.replace("d_model, num_heads", "config").replace("= num_heads", "= config.num_heads")
    path = write(
        text.replace("d_model", "config.d_model")
        + """
    @classmethod
    def from_pretrained(cls, model):
        config, rotary_emb = model.config, model.layers[0].rotary_emb
        assert config.num_key_value_heads == config.num_attention_heads and rotary_emb is None
        return cls(config)
"""
    )
    assert load_implementation(path, spec).functions.keys() == {"multi_head_attention"}


def test_a_function_named_as_a_component_may_have_other_arguments(write, spec):
    path = write(
        """
        import math, torch

        def scaled_dot_product_attention(Q, K, V):
            return torch.softmax(Q @ K.transpose(-2, -1) / math.sqrt(K.size(-1)), -1) @ V

        def softmax(x):
            return torch.softmax(x, -1)
        """
    )
    adapter = load_implementation(path, spec)
    assert adapter.functions.keys() == {"scaled_dot_product_attention", "softmax"}
    assert not adapter.broken


SWITCHED = """
import math, torch

def scaled_dot_product_attention(query, key, value, is_causal=False):
    return torch.softmax(query @ key.mT / math.sqrt(key.size(-1)), -1) @ value
"""


@pytest.mark.parametrize("name", ["", ":scaled_dot_product_attention"])
def test_a_switch_of_a_function_named_as_a_component_is_set(name, write):
    result = run("check", write(SWITCHED) + name)
    assert result.exit_code == 1
    assert "Mistake found: mask-not-inplace, the mask has no effect" in result.stdout


def test_a_switch_costs_no_gradient_of_a_user(write, spec):
    gradient = "def scaled_dot_product_attention_gradient(query, key, value, mask=None, *, cotangent):\n    return {}\n"
    adapter = load_implementation(write(f"{SWITCHED}\n{gradient}"), spec)
    assert adapter.gradients.keys() == adapter.functions.keys() == {"scaled_dot_product_attention"}


def test_parts_of_two_libraries_are_checked_one_by_one(write, spec):
    path = write(
        """
        import numpy as np, torch

        def layer_norm_(x, weight, bias):
            x = x - x.mean(-1, keepdims=True)
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight + bias

        def my_softmax(z):
            return torch.softmax(z, -1)
        """
    )
    with pytest.raises(AdapterError, match=r"its parts work on numpy and torch: check each by .*model\.py:NAME$"):
        load_implementation(path, spec)


def test_a_file_is_loaded_again_with_its_class(write, spec):
    adapter = load_implementation(write(NORM) + ":LayerNorm", spec, Reading())
    assert adapter.reload is not None
    assert adapter.reload().functions.keys() == {"layer_norm"}


def test_options_of_the_command_line_say_what_a_class_cannot(write):
    path = write(NORM.replace("1e-6", "1e-5"))
    declared = "--convention", "layer_norm_eps=1e-5"
    assert run("check", f"{path}:LayerNorm", "--case", "ln-distinct-sizes", *declared).exit_code == 0
    refused = run("check", path, "--convention", "layer_norm_eps")
    assert refused.exit_code == 2
    assert "'layer_norm_eps' has no option: write NAME=OPTION, such as empty_row=zeros" in refused.stderr
    refused = run("check", path, "--convention", "norm=1e-5")
    assert refused.exit_code == 2
    assert "CONVENTIONS has 'norm'; conventions are " in refused.stderr


def test_every_command_takes_a_class(write, tmp_path):
    name, base = write(NORM) + ":LayerNorm", str(tmp_path / "base")
    assert run("compare", name, "reference", "--component", "layer_norm").exit_code == 0
    assert run("baseline", "record", name, "--out", base).exit_code == 0
    assert run("baseline", "check", name, base).exit_code == 0


def test_the_type_of_an_object_that_is_no_module_is_built_again():
    class Plain:
        def __init__(self, d_model):
            self.norm = torch.nn.LayerNorm(d_model)

        def forward(self, x):
            return self.norm(x)

    assert goldformer.check(Plain(8)).conforms


@pytest.mark.parametrize("error", [AdapterError("which?"), goldformer.NonConformance("which?")])
def test_a_notebook_shows_the_message_and_no_traceback(error):
    assert error._render_traceback_() == [f"{type(error).__name__}: which?"]


def test_a_file_with_a_class_that_no_call_fits_is_partial(write, tmp_path):
    wrong = ATTENTION.replace("torch.softmax(scores, -1)", "torch.sigmoid(torch.sin(scores))")
    path = write(NORM + wrong)
    report = goldformer.check(path)
    assert not report
    assert report.partial == ("MultiHeadAttention",)
    result = run("check", path)
    assert result.exit_code == 3
    assert result.stderr.endswith("too few cases were judged of MultiHeadAttention. --allow-partial accepts that\n")
    assert "Note: MultiHeadAttention is not checked: No call of MultiHeadAttention that was tried" in result.stdout
    # Who asks for another component is not told of it.
    assert run("check", path, "--component", "layer_norm").exit_code == 0


def test_parts_of_a_layer_that_no_component_has_by_themselves_are_judged_with_it(spec):
    adapter = load_implementation(REPOSITORY / "tests" / "support" / "styles" / "llama_of_blocks.py", spec)
    assert {"decoder_only_layer", "decoder_only_model"} < adapter.functions.keys()
    assert any(hint.startswith("CausalSelfAttention is not checked: ") for hint in adapter.hints)
    assert adapter.unmatched == ()


def test_a_function_of_a_query_keys_and_values_that_no_call_fits_is_partial(write):
    lost = "import torch\ndef attend(q, k, v):\n    return torch.sin(q @ k.transpose(-1, -2)) @ v\n"
    helper = "def double(x):\n    return 2 * x\n"
    report = goldformer.check(write(NORM + lost + helper))
    assert report.partial == ("attend",)


GPT = """
import math, torch
from torch import nn

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
        ("block_size), 1))", "Mistake found: All later keys but the next one are hidden in every call"),
        ("block_size)).bool() | True)", "Mistake found: mask-not-inplace, the mask has no effect"),
    ],
)
def test_a_block_that_leaks_the_future_in_the_file_of_a_model_is_named(wrong, named, write):
    result = run("check", write(GPT.replace("block_size)))", wrong)))
    assert result.exit_code == 1
    assert "Fix first: encoder_layer" in result.stdout
    assert named in " ".join(result.stdout.split())


def test_a_helper_is_not_taken_for_a_component_with_a_mistake(write, spec):
    helpers = """
        class Residual(nn.Module):
            def forward(self, x):
                return x

        def keep(x):
            return x
        """
    adapter = load_implementation(write(NORM + textwrap.dedent(helpers)), spec)
    assert adapter.functions.keys() == {"layer_norm"}
    assert not any("keep" in hint for hint in adapter.hints)


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
