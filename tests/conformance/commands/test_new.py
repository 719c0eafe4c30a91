"""goldformer new: an adapter that runs at once, says what is missing, and conforms when it is filled in."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.adapters import find_adapter
from goldformer.conformance.cli import main

SOFTMAX = {
    "numpy": """
    import numpy as np
    if 0 in scores.shape:
        raise ValueError("scores: empty")
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
""",
    "torch": """
    if 0 in scores.shape:
        raise ValueError("scores: empty")
    return scores.softmax(-1)
""",
}
every_library = pytest.mark.parametrize("arrays", SOFTMAX)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def goldformer(*arguments):
    return CliRunner().invoke(main, arguments)


def new(arrays, path="mine.py"):
    result = goldformer("new", path, "--arrays", arrays, "--all")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"wrote {path}\nnow run: goldformer check {path}\n"


def test_torch_is_what_it_is_written_for_unless_asked(spec):
    assert goldformer("new", "mine.py").exit_code == 0
    assert find_adapter("mine.py", spec).arrays == "torch"


@every_library
def test_it_has_every_component_with_the_contracts_arguments(arrays, spec):
    new(arrays)
    adapter = find_adapter("mine.py", spec)
    assert (adapter.name, adapter.arrays) == ("mine", arrays)
    assert list(adapter.functions) == list(spec.contracts)
    assert (adapter.broken, adapter.hints, adapter.conventions) == ({}, (), {})


@every_library
def test_it_describes_every_argument_and_output(arrays, spec, tmp_path):
    new(arrays)
    module = ast.parse((tmp_path / "mine.py").read_text(encoding="utf-8"))
    documented = {f.name: ast.get_docstring(f) for f in module.body if isinstance(f, ast.FunctionDef)}
    for contract in spec.contracts.values():
        text = documented[contract.component]
        assert text.startswith(contract.title)
        for name, array in contract.inputs.items():
            assert f"{name}: {array.kind}" in text
        for name in contract.params:
            assert f'params["{name}"]' in text
        for name, array in contract.outputs.items():
            assert f"{name} {array.shape}" in text


def test_one_component_is_written_unless_others_are_named(spec):
    goldformer("new", "mine.py")
    assert list(find_adapter("mine.py", spec).functions) == ["scaled_dot_product_attention"]
    text = " ".join(Path("mine.py").read_text(encoding="utf-8").replace("\n#", "").split())
    others = ", ".join(name for name in spec.contracts if name != "scaled_dot_product_attention")
    assert text.endswith(f" --component NAME, or --all, writes their stubs): {others}")
    goldformer("new", "other.py", "--component", "softmax,encoder_layer")
    assert list(find_adapter("other.py", spec).functions) == ["softmax", "encoder_layer"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--component", "sofmax"], "--component sofmax: did you mean softmax?"),
        (["--component", "softmax", "--all"], "--all writes every component: leave out --component, or --all"),
    ],
    ids=["unknown", "both"],
)
def test_what_cannot_be_written_is_said_and_nothing_is_written(options, says):
    result = goldformer("new", "mine.py", *options)
    assert (result.exit_code, result.stderr) == (2, f"goldformer: {says}\n")
    assert not Path("mine.py").exists()


@pytest.mark.sample(1)
@every_library
def test_it_runs_at_once_and_everything_is_missing(arrays, spec):
    new(arrays)
    result = goldformer("check", "mine.py", "--dtype", "float32")
    assert result.exit_code == 2
    assert result.stderr.startswith("goldformer: nothing was checked: everything was skipped, most for: ")
    text = " ".join(result.stdout.partition("\nSpec: ")[0].split())
    assert text.endswith(f" Not implemented: {', '.join(spec.components[:4])} and {len(spec.components) - 4} more")
    assert "component passed" not in text


@every_library
def test_each_stub_says_where_to_write(arrays):
    new(arrays)
    result = goldformer("check", "mine.py", "--case", "sm-saturated")
    assert result.stderr == "goldformer: nothing was checked: softmax: call yours here\n"


@pytest.mark.sample(1)
@every_library
def test_with_softmax_filled_in_softmax_conforms_and_the_rest_is_missing(arrays, tmp_path, spec):
    new(arrays)
    path = tmp_path / "mine.py"
    source = path.read_text(encoding="utf-8")
    stub = '    raise NotImplementedError("softmax: call yours here")\n'
    assert source.count(stub) == 1
    path.write_text(source.replace(stub, SOFTMAX[arrays]), encoding="utf-8")
    result = goldformer("check", "mine.py", "-v")
    assert (result.exit_code, result.stderr) == (0, "")
    row = result.stdout.splitlines()[2]
    assert row.startswith("softmax ")
    assert " conforms (" in row
    missing = ", ".join(name for name in spec.components if name != "softmax")
    assert f" Not implemented: {missing} Spec: " in " ".join(result.stdout.split())


def test_an_existing_file_is_left_alone_unless_forced(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("precious = 1\n", encoding="utf-8")
    result = goldformer("new", "mine.py")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "goldformer: mine.py exists: give another name, or --force to overwrite it\n"
    assert path.read_text(encoding="utf-8") == "precious = 1\n"
    assert goldformer("new", "mine.py", "--force").exit_code == 0
    assert "def scaled_dot_product_attention" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("mine.txt", "mine.txt: an adapter is a Python file, so its name ends in .py"),
        ("no_folder/mine.py", "no_folder/mine.py cannot be written: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_is_2_and_says_why(path, says):
    result = goldformer("new", path)
    assert (result.exit_code, result.stderr) == (2, f"goldformer: {says}\n")


def test_a_library_that_is_not_known_is_2():
    result = goldformer("new", "mine.py", "--arrays", "jax")
    assert result.exit_code == 2
    assert "'jax' is not one of 'torch', 'numpy'" in result.stderr
