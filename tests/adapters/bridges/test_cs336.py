"""The bridge to the first assignment of CS336: right code conforms, mistakes are named, stubs are not implemented."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import goldformer
from goldformer.adapters import AdapterError, find_adapter
from goldformer.adapters.bridges.cs336 import Cs336
from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main
from repository import REPOSITORY

SOLUTION = REPOSITORY / "tests" / "support" / "exercises" / "cs336"

COMPONENTS = {
    "softmax",
    "cross_entropy",
    "token_embedding",
    "rms_norm",
    "rotary_embedding",
    "gated_feed_forward",
    "scaled_dot_product_attention",
    "multi_head_attention",
    "decoder_only_layer",
    "decoder_only_model",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the solution, in the folder where commands run."""
    shutil.copytree(SOLUTION, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    # A solution has a package of this name too.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        monkeypatch.delitem(sys.modules, name)
    with forget_modules(tmp_path):
        yield tmp_path / "mine"


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def run(*words):
    return CliRunner().invoke(main, ["check", *words])


def test_a_right_solution_conforms(folder):
    result = run("--bridge", "cs336", "mine", "--json", "out.json")
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if " conforms (" in line}
    assert rows.keys() == COMPONENTS
    # Nothing that an exercise does not ask for is listed as missing.
    assert "Not implemented" not in result.stdout
    found = json.loads((folder.parent / "out.json").read_text(encoding="utf-8"))
    assert {v["status"] for v in found["verdicts"]} == {"passed", "skipped"}
    # How its modules get their weights keeps gradients from these; that is none of its mistakes.
    absent = {v["message"] for v in found["verdicts"] if v["reason"] == "not-implemented"}
    assert "run_swiglu copies w1_weight, w2_weight, w3_weight, so no gradient reaches them" in absent
    listed = "attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight and 6 more"
    assert f"run_transformer_block copies {listed}, so no gradient reaches them" in absent
    judged = {v["component"] for v in found["verdicts"] if v["asks"] == "gradients" and v["status"] == "passed"}
    assert judged >= {"softmax", "cross_entropy", "rotary_embedding", "scaled_dot_product_attention"}


MISTAKES = {
    "scale-missing": ("scaled_dot_product_attention", " / math.sqrt(q.shape[-1])", ""),
    "softmax-unstable": ("softmax", "shifted = x - x.amax(dim=dim, keepdim=True)", "shifted = x"),
    "rms-variance": ("rms_norm", "x32.square().mean(dim=-1", "(x32 - x32.mean(-1, keepdim=True)).square().mean(dim=-1"),
    "rope-exponent-half": ("rotary_embedding", "torch.arange(0, d_k, 2)", "torch.arange(0, d_k // 2)"),
    "glu-no-activation": ("gated_feed_forward", "gate * torch.sigmoid(gate)", "gate"),
    "block-not-turned": ("decoder_only_layer", "q, k = self.rope(q, positions), self.rope(k, positions)", "pass"),
    "block-norm-after": ("decoder_only_layer", "x + self.attn(self.ln1(x))", "self.ln1(x + self.attn(x))"),
    "lm-final-norm-missing": ("decoder_only_model", "self.lm_head(self.ln_final(x))", "self.lm_head(x)"),
    "layers-shared": ("decoder_only_model", "x = layer(x)", "x = self.layers[0](x)"),
    "head-merge-view": ("multi_head_attention", "heads.transpose(-2, -3).flatten(-2)", "heads.reshape(x.shape)"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_it_is_named(mistake, folder):
    component, old, new = MISTAKES[mistake]
    edit(folder / "solution" / "layers.py", old, new)
    result = run("--bridge", "cs336", "mine", "--component", component)
    assert result.exit_code == 1
    assert f"Mistake found: {mistake}," in result.stdout


def test_a_failing_check_is_repeated_by_its_own_line(folder):
    edit(folder / "solution" / "layers.py", " / math.sqrt(q.shape[-1])", "")
    result = run("--bridge", "cs336", "mine", "--component", "scaled_dot_product_attention")
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("Repeat: "))
    words = line.removeprefix("Repeat: goldformer check ").split()
    assert words[0] == "cs336:mine"
    assert run(*words).exit_code == 1


STUBS = "def run_softmax(in_features, dim):\n    raise NotImplementedError\n"


def test_a_stub_is_not_implemented_and_no_failure(folder):
    (folder / "tests" / "adapters.py").write_text(STUBS, encoding="utf-8")
    result = run("cs336:mine")
    assert " fails" not in result.stdout
    assert result.exit_code == 2
    (line,) = (line for line in result.output.splitlines() if line.startswith("Not implemented: "))
    assert "softmax" in line


def test_of_a_solution_in_progress_what_it_has_is_judged(folder):
    file = folder / "tests" / "adapters.py"
    done = "def run_cross_entropy(inputs, targets):\n    return torch.nn.functional.cross_entropy(inputs, targets)\n"
    file.write_text(f"import torch\n\n\n{STUBS}\n\n{done}", encoding="utf-8")
    result = run("cs336:mine/tests/adapters.py")
    assert (result.exit_code, " conforms (" in result.stdout) == (0, True), result.output


def test_weights_loaded_without_gradients_are_no_mistake(folder):
    edit(folder / "tests" / "adapters.py", "    return layer(in_features)\n\n\ndef run_scaled", (
        "    with torch.no_grad():\n        return layer(in_features)\n\n\ndef run_scaled"
    ))  # fmt: skip
    report = goldformer.check("cs336:mine", "gated_feed_forward")
    assert report.conforms
    absent = {v.message for v in report.record.verdicts if v.reason == "not-implemented"}
    assert "run_swiglu computes without gradients, which the exercise does not ask for" in absent


def test_weights_in_a_reentrant_checkpoint_are_reached(folder):
    edit(folder / "tests" / "adapters.py", """    layer = SwiGLU(d_model, d_ff)
    layer.w1.weight.data = w1_weight
    layer.w2.weight.data = w2_weight
    layer.w3.weight.data = w3_weight
    return layer(in_features)
""", """    def network(x, w1, w2, w3):
        return (torch.nn.functional.silu(x @ w1.T) * (x @ w3.T)) @ w2.T

    weights = (w1_weight, w2_weight, w3_weight)
    return torch.utils.checkpoint.checkpoint(network, in_features, *weights, use_reentrant=True)
""")  # fmt: skip
    edit(folder / "tests" / "adapters.py", "import torch\n", "import torch\nimport torch.utils.checkpoint\n")
    report = goldformer.check("cs336:mine", "gated_feed_forward")
    assert report.conforms
    assert any(v.asks == "gradients" and v.status.value == "passed" for v in report.record.verdicts)


def test_python_reads_the_files_again(folder):
    assert goldformer.check("cs336:mine", "softmax")
    edit(folder / "solution" / "layers.py", "powers.sum(dim=dim, keepdim=True)", "powers.sum()")
    assert not goldformer.check("cs336:mine", "softmax")


def test_pytest_takes_it_as_an_adapter(folder):
    words = ["--pyargs", "goldformer.conformance", "--adapter", "cs336:mine", "--component", "softmax"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "conformance of cs336:mine" in done.stdout


def find_own_softmax(adapter):
    """The solution's function that the one of its tests/adapters.py calls."""
    method: Any = adapter.functions["softmax"]
    return method.__self__.functions.found["run_softmax"].__globals__["softmax"]


def test_a_second_load_has_modules_of_its_own(folder, spec):
    adapter = find_adapter("cs336:mine", spec)
    first, second = (find_own_softmax(found) for found in (adapter, adapter.reload()))
    assert first is not second


def test_a_block_gets_the_weights_of_the_assignment(folder, spec):
    edit(folder / "tests" / "adapters.py", "    block = TransformerBlock(", (
        "    assert num_heads == 4 and max_seq_len == 3 and theta == 10000.0 and d_ff == 5\n"
        "    assert all(w.is_contiguous() for w in weights.values())\n"
        "    k = weights['attn.k_proj.weight']\n"
        "    assert torch.equal(k[:2], k[2:4]) and torch.equal(k[4:6], k[6:8]) and not torch.equal(k[:2], k[4:6])\n"
        "    block = TransformerBlock("
    ))  # fmt: skip
    shapes = {"w_q": (8, 8), "w_k": (8, 4), "w_v": (8, 4), "w_o": (8, 8), "norm_1.gamma": (8,), "norm_2.gamma": (8,)}
    shapes |= {"feed_forward.w_gate": (8, 5), "feed_forward.w_up": (8, 5), "feed_forward.w_down": (5, 8)}
    params = {name: torch.randn(shape) for name, shape in shapes.items()}
    layer = find_adapter("cs336:mine", spec).functions["decoder_only_layer"]
    x = torch.randn(2, 3, 8)
    assert layer(x, num_heads=4, num_kv_heads=2, params=params).shape == x.shape
    with pytest.raises(NotImplementedError, match=r"^run_transformer_block takes no mask$"):
        layer(x, torch.ones(3, 3).bool(), num_heads=4, num_kv_heads=2, params=params)


@pytest.mark.parametrize("returned", ["in_features[..., 0]", "in_features.sum().item()", "[1.0]"])
def test_what_is_no_result_is_a_failure_in_the_words_of_the_judge(returned, folder):
    edit(folder / "tests" / "adapters.py", "    layer = RMSNorm(d_model, eps)\n", f"    return {returned}\n")
    report = goldformer.check("cs336:mine", "rms_norm")
    assert report.failures
    assert not any("AttributeError" in verdict.message or "reshape" in verdict.message for verdict in report.failures)


def test_it_has_every_component_that_is_listed(spec):
    assert {name for name in spec.contracts if hasattr(Cs336, name)} == COMPONENTS


# Errors


def refuse(name, spec):
    with pytest.raises(AdapterError) as caught:
        find_adapter(name, spec)
    return str(caught.value)


def test_an_unknown_bridge_is_guessed(folder, spec):
    known = "Give one of: cs336, torchcode"
    assert run("--bridge", "cs33", "mine").stderr == f"goldformer: no bridge 'cs33'. Did you mean cs336? {known}\n"
    assert run("--bridge", "zzz", "mine").stderr == f"goldformer: no bridge 'zzz'. {known}\n"
    assert refuse("cs33:mine", spec).startswith("no adapter 'cs33:mine'. Did you mean cs336:PATH? Give a file")
    assert refuse("cs336", spec).startswith("no adapter 'cs336'. Did you mean cs336:PATH? Give a file")


@pytest.mark.parametrize(("path", "file"), [("mine/solution", "mine/solution/tests/adapters.py"), ("no.py", "no.py")])
def test_a_path_without_the_file_says_which_it_must_be(path, file, folder, spec):
    assert refuse(f"cs336:{path}", spec) == (
        f"{file}: no such file. The bridge cs336 takes the folder of the assignment, which has tests/adapters.py, or "
        "that file"
    )


def test_a_file_without_the_functions_says_so(folder, spec):
    assert refuse("cs336:mine/solution/layers.py", spec) == (
        "mine/solution/layers.py: it has none of the functions run_softmax, run_cross_entropy, run_embedding and 7 "
        "more: give the file or the folder of the exercise that defines them"
    )


def test_other_parameters_are_named_with_their_line(folder, spec):
    edit(folder / "tests" / "adapters.py", "run_rmsnorm(d_model, eps, weights,", "run_rmsnorm(d_model, eps, weight,")
    message = refuse("cs336:mine", spec)
    lines = (folder / "tests" / "adapters.py").read_text(encoding="utf-8").splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if "def run_rmsnorm" in line)
    assert message == (
        f"mine/tests/adapters.py:{number}: run_rmsnorm(d_model, eps, weight, in_features) cannot be called: missing a "
        "required argument: 'weight'. Write it with the parameters of the exercise: run_rmsnorm(d_model, eps, weights, "
        "in_features)"
    )


def test_parameters_that_the_assignment_gives_by_position_have_any_names(folder, spec):
    edit(folder / "tests" / "adapters.py", "run_softmax(in_features, dim):\n    return softmax(in_features, dim)", (
        "run_softmax(x, axis):\n    return softmax(x, axis)"
    ))  # fmt: skip
    assert goldformer.check("cs336:mine", "softmax")


def test_a_failed_import_says_what_is_missing_and_where_to_install_goldformer(folder, spec):
    file = folder / "tests" / "adapters.py"
    file.write_text("import not_here_at_all\n", encoding="utf-8")
    assert refuse("cs336:mine", spec) == (
        "mine/tests/adapters.py could not be imported: ModuleNotFoundError: No module named 'not_here_at_all' "
        f"({file.resolve()}:1). Write it, or install goldformer in the environment where your own tests run"
    )
    file.write_text("1 / 0\n", encoding="utf-8")
    assert refuse("cs336:mine", spec) == (
        "mine/tests/adapters.py could not be imported: ZeroDivisionError: division by zero (mine/tests/adapters.py:1)"
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("from not_here_at_all import softmax", "ModuleNotFoundError: No module named 'not_here_at_all'"),
        # The assignment's package asks for its own version.
        ("import asks_for_itself", "PackageNotFoundError: No package metadata was found for not_installed"),
    ],
)
def test_what_a_function_imports_when_it_is_called_is_imported_before(line, problem, folder, spec):
    """All of its calls would fail, and nothing would say that the code is fine."""
    package = "import importlib.metadata\n\nversion = importlib.metadata.version('not_installed')\n"
    (folder / "asks_for_itself.py").write_text(package, encoding="utf-8")
    edit(folder / "tests" / "adapters.py", "    return softmax(in_features, dim)", (
        f"    {line}\n\n    return softmax(in_features, dim)"
    ))  # fmt: skip
    message = refuse("cs336:mine", spec)
    assert message.startswith(f"mine/tests/adapters.py: run_softmax could not be imported: {problem}")
    assert message.endswith(". Write it, or install goldformer in the environment where your own tests run")


def test_a_module_of_the_solution_that_is_missing_fails_its_function_only(folder):
    edit(folder / "tests" / "adapters.py", "    return softmax(in_features, dim)", (
        "    from solution.norms import softmax\n\n    return softmax(in_features, dim)"
    ))  # fmt: skip
    report = goldformer.check("cs336:mine", "softmax")
    assert {v.message.partition(" (")[0] for v in report.failures if v.kind == "case"} == {
        "raised ModuleNotFoundError: No module named 'solution.norms'"
    }
    assert goldformer.check("cs336:mine", "cross_entropy")


@pytest.mark.parametrize(
    ("top", "inside"), [("from .helpers import softmax", "pass"), ("", "from .helpers import softmax")]
)
def test_a_file_that_imports_next_to_itself_is_found(top, inside, folder, spec):
    (folder / "tests" / "__init__.py").touch()
    (folder / "tests" / "helpers.py").write_text("from solution.layers import softmax\n", encoding="utf-8")
    (folder / "tests" / "adapters.py").write_text(
        f"{top}\n\n\ndef run_softmax(x, dim):\n    {inside}\n    return softmax(x, dim)\n", encoding="utf-8"
    )
    assert find_adapter("cs336:mine", spec).functions.keys() == COMPONENTS
