"""goldformer infer: what it prints and writes, and what it refuses."""

from __future__ import annotations

import shutil

import nbformat
import pytest
from click.testing import CliRunner

from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main
from repository import REPOSITORY

STYLES = REPOSITORY / "tests" / "support" / "styles"


@pytest.fixture(autouse=True)
def in_a_folder_with_the_styles(tmp_path, monkeypatch):
    for path in STYLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    with forget_modules(tmp_path):
        yield


def goldformer(*arguments):
    return CliRunner().invoke(main, arguments)


def test_a_right_class_is_shown_and_its_adapter_conforms():
    result = goldformer("infer", "separate_attention.py:CourseAttention", "--out", "mine.py")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "CourseAttention: multi_head_attention\n"
        "  embed_size of the constructor: width\n"
        "  heads of the constructor: heads\n"
        "  values of the call: value\n"
        "  keys of the call: key\n"
        "  query of the call: query\n"
        "  biases: all\n"
        "  mask: as it comes, True = may attend\n"
        "Golden values fit: CourseAttention computes multi_head_attention, called in this way.\n"
        "wrote mine.py\n"
        "now run: goldformer check mine.py\n"
    )
    checked = goldformer("check", "mine.py", "-q")
    assert checked.exit_code == 0
    assert "conforms (77 of 89 cases apply)" in checked.stdout


def test_without_a_file_the_adapter_is_printed():
    result = goldformer("infer", "small_parts.py:BertNorm")
    assert result.exit_code == 0
    assert result.stdout.endswith(
        'ARRAYS = "torch"\n'
        'CONVENTIONS = {"layer_norm_eps": "1e-12"}\n'
        'NAMES = {"gamma": "gamma", "beta": "beta"}\n'
        "\n\n"
        "def layer_norm(x, *, params):\n"
        "    module = BertNorm(hidden_size=x.shape[-1]).to(x).eval()\n"
        '    state = map_state(NAMES, params, module, other_sizes="skip")\n'
        "    inputs = dict(x=x)\n"
        "    return functional_call(module, state, (), inputs, strict=True)\n\n"
    )


def test_a_known_mistake_is_named_and_check_names_it_too():
    result = goldformer("infer", "defective_parts.py:Unscaled", "--out", "mine.py")
    assert result.exit_code == 1
    sentence = "the scores are not divided by √d_k (scale-missing)"
    assert f"Unscaled fits as multi_head_attention if a known mistake is made: {sentence}." in result.stdout
    checked = goldformer("check", "mine.py", "-q", "--case", "mha-distinct-sizes-causal")
    assert checked.exit_code == 1
    assert "Mistake found: scale-missing" in checked.stdout


def test_an_unknown_mistake_leaves_what_the_names_say():
    result = goldformer("infer", "defective_parts.py:MedianNorm")
    assert result.exit_code == 2
    said = "No call of MedianNorm that was tried gives golden values, with a known mistake or without. It has another"
    assert said in result.stdout
    # The adapter stands below it.
    assert "The adapter is what its names suggest" in result.stdout
    assert "`goldformer infer`" not in " ".join(result.stdout.partition('"""')[0].split())


def test_a_mistake_that_few_cases_show_is_said(tmp_path):
    text = (STYLES / "small_parts.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(text.replace("logits.max(dim=-1, keepdim=True).values", "0"), encoding="utf-8")
    result = goldformer("infer", "mine.py:stable_softmax")
    assert result.exit_code == 1
    assert "stable_softmax fits as softmax if a known mistake is made: " in result.stdout
    assert "(softmax-unstable)" in result.stdout


def test_the_wrong_component_is_a_question():
    result = goldformer("infer", "small_parts.py:BertNorm", "--component", "softmax")
    assert (result.exit_code, result.stdout) == (2, "")
    expected = (
        "goldformer: BertNorm has arguments or parameters that softmax has not. `goldformer new` writes an adapter"
    )
    assert result.stderr.startswith(expected)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("mine.txt", "--out mine.txt: an adapter is a Python file, so its name ends in .py"),
        ("small_parts.py", "--out small_parts.py exists: give another name, or --force to overwrite it"),
        ("missing/mine.py", "--out missing/mine.py: there is no folder missing"),
    ],
)
def test_a_place_where_the_adapter_cannot_stand_is_refused(out, message):
    result = goldformer("infer", "small_parts.py:BertNorm", "--out", out)
    assert (result.exit_code, result.stderr) == (2, f"goldformer: {message}\n")


def test_an_adapter_in_another_folder_finds_the_class(tmp_path):
    (tmp_path / "other").mkdir()
    saved = goldformer("infer", "small_parts.py:BertNorm", "--out", "other/mine.py")
    assert (saved.exit_code, saved.stderr) == (0, "")
    text = (tmp_path / "other" / "mine.py").read_text(encoding="utf-8")
    assert 'sys.path.insert(0, str(Path(__file__).resolve().parent / ".."))\nfrom small_parts import BertNorm' in text
    assert goldformer("check", "other/mine.py", "-q").exit_code == 0


@pytest.mark.parametrize(("out", "has_detour"), [("net_c/mine.py", True), ("mine.py", False)])
def test_the_adapter_of_a_class_of_a_package_finds_the_package(out, has_detour, tmp_path):
    (tmp_path / "net_c").mkdir()
    shutil.copy("small_parts.py", "net_c/parts.py")
    (tmp_path / "net_c" / "norms.py").write_text("from .parts import BertNorm\n\n\nclass Mine(BertNorm): ...\n")
    saved = goldformer("infer", "net_c/norms.py:Mine", "--out", out)
    assert (saved.exit_code, saved.stderr) == (0, "")
    text = (tmp_path / out).read_text(encoding="utf-8")
    assert "from net_c.norms import Mine" in text
    assert ("sys.path" in text) == has_detour
    assert goldformer("check", out, "-q").exit_code == 0


@pytest.mark.parametrize("out", ["mine.py", "other/mine.py"])
@pytest.mark.parametrize("file", ["lab.ipynb", "2-norms.py", "types.py"])
def test_the_adapter_of_a_file_that_no_import_finds_loads_it(file, out, tmp_path):
    text = (STYLES / "small_parts.py").read_text(encoding="utf-8")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text)])
    (tmp_path / file).write_text(nbformat.writes(notebook) if file.endswith("ipynb") else text, encoding="utf-8")
    (tmp_path / "other").mkdir()
    assert goldformer("infer", f"{file}:BertNorm", "--out", out).exit_code == 0
    assert goldformer("check", out, "-q").exit_code == 0


CONFIGURED = """
import torch, sizes
from torch import nn

class Norm(nn.Module):
    def __init__(self, args: sizes.Args):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(args.width)), nn.Parameter(torch.zeros(args.width))

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], self.gamma, self.beta)
"""


@pytest.mark.parametrize("file", ["model.py", "2-norms.py"])
def test_a_config_of_another_module_is_imported_from_there(file, tmp_path):
    (tmp_path / file).write_text(CONFIGURED)
    (tmp_path / "sizes.py").write_text(
        "import dataclasses\n\n"
        "@dataclasses.dataclass\nclass Args:\n    dim: int\n    width = property(lambda self: self.dim)\n"
    )
    (tmp_path / "other").mkdir()
    assert goldformer("infer", f"{file}:Norm", "--out", "other/mine.py").exit_code == 0
    assert goldformer("check", "other/mine.py", "-q").exit_code == 0


def test_the_file_of_the_class_is_not_overwritten():
    result = goldformer("infer", "small_parts.py:BertNorm", "--out", "small_parts.py", "--force")
    assert result.exit_code == 2
    assert result.stderr == "goldformer: --out small_parts.py: that is the file of the class, name another one\n"


def test_the_help_says_what_it_takes():
    result = goldformer("infer", "--help")
    assert "WHAT is my_model.py:MyAttention or package.module:MyAttention" in result.stdout
