"""A baseline knows which results stay the same in other batches, with padding, as views and on more threads."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from drifts import layer_norm, moves, on_torch, recorded
from goldformer.adapters import find_adapter
from goldformer.conformance.baseline.model import Key
from goldformer.conformance.baseline.moves import Kind
from goldformer.conformance.baseline.settings import list_setting_keys
from goldformer.conformance.baseline.store import load, save
from goldformer.conformance.cli import main
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.properties.judge import check_property

ROWS = Key("ln-rows of layer_norm", "float32", "cpu")


def in_another_order(x, params):
    """A layer norm whose sums run one number after the other."""
    mean = x.flip(-1).cumsum(-1)[..., -1:] / x.shape[-1]
    variance = ((x - mean) ** 2).cumsum(-1)[..., -1:] / x.shape[-1]
    return (x - mean) / torch.sqrt(variance + 1e-5) * params["gamma"] + params["beta"]


def with_batches(of_several):
    """A layer norm that treats several rows as `of_several` does."""

    def by_number_of_rows(x, *, params):
        return layer_norm()(x, params=params) if x.numel() == x.shape[-1] else of_several(x, params)

    by_number_of_rows.__name__ = "layer_norm"
    return by_number_of_rows


@pytest.fixture(scope="module")
def baselines(spec):
    """Baselines of a layer norm that is the same for every batch, that is so up to rounding, and that is not."""
    functions = (
        layer_norm(),
        with_batches(in_another_order),
        with_batches(lambda x, params: layer_norm()(x, params=params) + x.mean()),
    )
    return [recorded(spec, on_torch(spec, function), "layer_norm", settings=True) for function in functions]


def move_of_rows(spec, old, new):
    [found] = [move for move in moves(spec, old, new) if move.key == ROWS]
    return found


def test_nothing_moves_where_nothing_changed(spec, baselines):
    assert {move.kind for move in moves(spec, baselines[0], baselines[0])} == {Kind.IDENTICAL}
    settings = {move.output for move in moves(spec, baselines[0], baselines[0]) if " of " in move.key.case}
    assert settings == {"batch size", "memory layout", "threads"}


def test_bits_that_are_lost_or_won_are_rounding_and_are_told(spec, baselines):
    lost, won = (move_of_rows(spec, *pair) for pair in (baselines[:2], baselines[1::-1]))
    assert (lost.kind, lost.output) == (won.kind, won.output) == (Kind.ROUNDING, "batch size")
    assert won.why == "now bit for bit"
    assert lost.why == f"no longer bit for bit, up to {lost.ratio:.2g} of the tolerance apart"
    assert 0 < lost.ratio < 1


def test_what_holds_no_longer_is_unexplained(spec, baselines):
    lost = move_of_rows(spec, baselines[0], baselines[2])
    assert lost.kind is Kind.UNEXPLAINED
    assert lost.why.startswith("does not hold any more: ")
    mended = move_of_rows(spec, baselines[2], baselines[0])
    assert (mended.kind, mended.why) == (Kind.FORM, "holds now")
    assert move_of_rows(spec, baselines[2], baselines[2]).kind is Kind.IDENTICAL


def test_the_folder_keeps_them(spec, baselines, tmp_path):
    for baseline in baselines:
        save(tmp_path / "kept", baseline)
        assert {move.kind for move in moves(spec, baseline, load(tmp_path / "kept"))} == {Kind.IDENTICAL}
    save(tmp_path / "without", recorded(spec, on_torch(spec, layer_norm()), "layer_norm"))
    assert "settings" not in (tmp_path / "without" / "manifest.yaml").read_text(encoding="utf-8")


def test_the_command_records_them_and_one_can_be_checked_alone(tmp_path):
    adapter, folder = tmp_path / "mine.py", tmp_path / "kept"
    code = 'import torch\nARRAYS = "torch"\ndef softmax(scores): return torch.softmax(scores, -1)\n'
    adapter.write_text(code, encoding="utf-8")
    words = ["record", str(adapter), "--out", str(folder), "--settings", "--dtype", "float32"]
    assert CliRunner().invoke(main, ["baseline", *words]).exit_code == 0
    words = ["check", str(adapter), str(folder), "--case", "memory-layout of softmax", "--allow", "identical"]
    done = CliRunner().invoke(main, ["baseline", *words])
    assert (done.exit_code, "nothing moved" in done.output) == (0, True)


def test_the_spec_says_in_which_settings_a_property_compares(spec):
    reference = find_adapter("reference", spec)
    for prop, component in list_setting_keys(spec).values():
        verdict = check_property(prop, component, Bench(spec, reference, "float32", "cpu", bitwise=True))
        # A component of masks and ids has no views of numbers to compare, and no sums that threads could share.
        assert verdict.invariances or prop.component == "*", prop.id
        assert {found.setting for found in verdict.invariances} <= set(prop.settings), prop.id
