"""goldformer trace: files and factories that give nothing to compare are named."""

import numpy as np
import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main

MODELS = """
from torch import nn

def mine(): raise KeyError("no such checkpoint")
def theirs(): return nn.Linear(2, 2)
def inputs(): raise ValueError("no data")
"""


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["broken.npz", "fine.npz"], "broken.npz is no file of named arrays: save numbers by numpy.savez"),
        (["empty.npz", "fine.npz"], "empty.npz is no file of named arrays: save numbers by numpy.savez"),
        (["objects.npz", "fine.npz"], "objects.npz is no file of named arrays: save numbers by numpy.savez"),
        (["broken.safetensors", "fine.npz"], "broken.safetensors is no file of named arrays: save numbers by"),
        (["models.py:mine", "models.py:theirs"], "models.py:mine raises KeyError: 'no such checkpoint'"),
        (["models.py:theirs", "models.py:theirs"], "inputs raises ValueError: no data"),
    ],
)
def test_what_gives_nothing_to_compare_is_named(names, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    for name, data in (("broken.npz", b"text"), ("empty.npz", b""), ("broken.safetensors", b"text")):
        (tmp_path / name).write_bytes(data)
    np.savez(tmp_path / "fine.npz", a=np.ones(2))
    np.savez(tmp_path / "objects.npz", a=np.array([1, None]))
    result = CliRunner().invoke(main, ["trace", *names])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "a fault in goldformer" not in result.stderr
