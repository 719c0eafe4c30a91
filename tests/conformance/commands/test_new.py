"""goldformer new: every component has its stub, with the arguments of its contract."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.adapters import find_adapter
from goldformer.conformance.cli import main


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_it_has_every_component_with_the_contracts_arguments(arrays, spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["new", "mine.py", "--arrays", arrays, "--all"]).exit_code == 0
    adapter = find_adapter("mine.py", spec)
    assert (adapter.name, adapter.arrays) == ("mine", arrays)
    assert list(adapter.functions) == list(spec.contracts)
    assert (adapter.broken, adapter.hints, adapter.conventions) == ({}, (), {})
    module = ast.parse(Path("mine.py").read_text(encoding="utf-8"))
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
