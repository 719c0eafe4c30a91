"""Encoder and decoder, their layers and stacks, against those of torch.nn, post-norm and pre-norm."""

from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import yaml
from torch import Tensor, nn

from goldformer.reference_impl import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    causal_mask,
    padding_mask,
)
from goldformer.spec import ROOT
from reference_functions import (
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
)

BATCH, HEADS, SEQ, SOURCE_SEQ, D_MODEL, D_FF, LAYERS = 3, 2, 5, 7, 14, 23, 2
SOURCE = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
NORM_FIRST = [pytest.param(False, id="post"), pytest.param(True, id="pre")]
SIZES = (D_MODEL, HEADS, D_FF)

Some = TypeVar("Some", bound=nn.Module)


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(module: Some) -> Some:
    """The module with parameters that are all different, and no scale of 1 or shift of 0 among them."""
    for seed, parameter in enumerate(module.parameters()):
        nn.init.normal_(parameter, mean=0.1, std=0.4, generator=torch.Generator().manual_seed(20 + seed))
    return module.double().eval()


def named(module: nn.Module) -> dict[str, Tensor]:
    return module.state_dict()


ENCODED = (real(BATCH, SOURCE_SEQ, D_MODEL), padding_mask(SOURCE, 0))
DECODED = (
    real(BATCH, SEQ, D_MODEL),
    real(BATCH, SOURCE_SEQ, D_MODEL, seed=1),
    causal_mask(SEQ, SEQ) & padding_mask(TARGET, 0),
    padding_mask(SOURCE, 0),
)


MODULES = [
    pytest.param(EncoderLayer, encoder_layer, ENCODED, id="encoder_layer"),
    pytest.param(DecoderLayer, decoder_layer, DECODED, id="decoder_layer"),
    pytest.param(Encoder, encoder, ENCODED, id="encoder"),
    pytest.param(Decoder, decoder, DECODED, id="decoder"),
]


def built(kind: type[nn.Module], **settings) -> Any:
    return kind(*SIZES, *((LAYERS,) if kind in (Encoder, Decoder) else ()), **settings)


def keywords(kind: type[nn.Module]) -> dict[str, int]:
    return {"num_heads": HEADS} | ({"num_layers": LAYERS} if kind in (Encoder, Decoder) else {})


@pytest.mark.parametrize(("kind", "function", "arguments"), MODULES)
@pytest.mark.parametrize("norm_first", NORM_FIRST)
@pytest.mark.parametrize("bias", [True, False])
def test_in_eval_mode_a_module_is_its_function_on_its_state(kind, function, arguments, norm_first, bias):
    module = filled(built(kind, norm_first=norm_first, bias=bias))
    expected = function(*arguments, **keywords(kind), params=named(module), norm_first=norm_first)

    result = module(*arguments)
    assert type(result) is type(expected)
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize(("kind", "function", "arguments"), MODULES)
def test_training_draws_dropout_and_eval_mode_has_none(kind, function, arguments):
    module = filled(built(kind, dropout=0.3))
    quiet = module(*arguments).output
    assert torch.equal(module(*arguments).output, quiet)

    module.train()
    assert not torch.equal(module(*arguments).output, module(*arguments).output)
    assert torch.equal(module.eval()(*arguments).output, quiet)

    # With dropout of 0 training is no different.
    still = built(kind, dropout=0.0).double()
    still.load_state_dict(named(module))
    assert torch.equal(still.train()(*arguments).output, quiet)
    # The weights of attention are not dropped.
    rates = {name: part.p for name, part in built(kind).named_modules() if isinstance(part, nn.Dropout)}
    assert {rate for name, rate in rates.items() if "attention" in name} == {0.0}
    assert {rate for name, rate in rates.items() if "attention" not in name} == {0.1}


@pytest.mark.parametrize(("kind", "arguments"), [(EncoderLayer, ENCODED), (DecoderLayer, DECODED)])
@pytest.mark.parametrize("norm_first", NORM_FIRST)
def test_dropout_takes_what_a_sublayer_adds_and_not_the_residual(kind, arguments, norm_first):
    module = filled(built(kind, dropout=1.0, norm_first=norm_first)).train()

    expected = arguments[0]
    if not norm_first:
        for norm in (module.norm_1, module.norm_2, *([module.norm_3] if kind is DecoderLayer else [])):
            expected = norm(expected)
    assert torch.equal(module(*arguments).output, expected)
    # A call for each sub-layer, and one within the feed-forward network.
    calls = []
    for part in module.modules():
        if isinstance(part, nn.Dropout) and part.p > 0:
            part.register_forward_hook(lambda *_: calls.append(1))
    module(*arguments)
    assert len(calls) == (3 if kind is EncoderLayer else 4)


def test_the_layers_of_a_stack_start_with_weights_of_their_own():
    first, second = Encoder(*SIZES, LAYERS).encoder
    name = "self_attention.w_q"
    assert not torch.equal(first.get_parameter(name), second.get_parameter(name))
    assert len({p.data_ptr() for p in Encoder(*SIZES, LAYERS).parameters()}) == LAYERS * 16


def test_a_hook_on_a_sublayer_sees_it_run():
    module = filled(DecoderLayer(*SIZES))
    seen = []
    for name, part in module.named_children():
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
    module(*DECODED)

    order = ["self_attention", "dropout", "norm_1", "cross_attention", "dropout", "norm_2"]
    assert seen == [*order, "feed_forward", "dropout", "norm_3"]


def of_contract(component: str, folder: Path = ROOT / "contracts", *, final_norm: bool = False) -> set[str]:
    """The names of the parameters, as the contracts spell them; a repeated block stands twice."""
    contract = yaml.safe_load((folder / f"{component}.yaml").read_text(encoding="utf-8"))
    names = set(contract.get("params", {}))
    for name, block in contract.get("blocks", {}).items():
        if "final_norm" in block.get("only_with", {}) and not final_norm:
            continue
        prefixes = [f"{name}.{i}" for i in range(LAYERS)] if "repeat" in block else [name]
        names |= {f"{prefix}.{inner}" for prefix in prefixes for inner in of_contract(block["component"])}
    return names


@pytest.mark.parametrize(("kind", "function", "arguments"), MODULES)
def test_modules_keep_their_parameters_under_the_names_of_the_contract(kind, function, arguments):
    names = of_contract(function.__name__)
    assert set(named(built(kind))) == names
    assert set(named(built(kind, bias=False))) == {n for n in names if not n.rpartition(".")[2].startswith("b_")}
    assert "norm_2.gamma" in names or f"{function.__name__}.1.norm_2.gamma" in names
    if kind in (Encoder, Decoder):
        with_norm = of_contract(function.__name__, final_norm=True)
        assert with_norm - names == {"norm.gamma", "norm.beta"}
        assert set(named(built(kind, final_norm=True))) == with_norm


def test_layers_of_different_width_within_are_one_stack():
    # Only d_model is common to all layers.
    wide, narrow = filled(EncoderLayer(D_MODEL, HEADS, 31)), filled(EncoderLayer(D_MODEL, HEADS, 11))
    params = {f"encoder.{i}.{n}": t for i, layer in enumerate((wide, narrow)) for n, t in named(layer).items()}
    x, mask = ENCODED

    result = encoder(x, mask, num_heads=HEADS, num_layers=2, params=params)
    assert torch.equal(result.output, narrow(wide(x, mask).output, mask).output)
