"""The Transformer against nn.Transformer, and what it must not depend on."""

import math
import resource
import sys
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from goldformer.reference_impl import (
    Transformer,
    beam_search,
    greedy_decode,
    positional_encoding,
    shift_right,
)
from goldformer.spec import ROOT
from reference_functions import transformer

BATCH, HEADS, SOURCE_SEQ, SEQ, D_MODEL, D_FF, VOCAB = 3, 2, 7, 5, 14, 23, 29
ENCODER_LAYERS, DECODER_LAYERS, PAD = 3, 2, 4
SOURCE = torch.tensor([[9, 3, 28, 0, 1, 7, 7], [2, 5, 11, 17, 23, PAD, PAD], [6, 0, PAD, PAD, PAD, PAD, PAD]])
TARGET = torch.tensor([[1, 13, 0, 26, PAD], [1, 2, 3, 5, 8], [1, 21, PAD, PAD, PAD]])
NORM_FIRST = [pytest.param(False, id="post"), pytest.param(True, id="pre")]
COUNTS: dict[str, Any] = {
    "num_heads": HEADS,
    "num_encoder_layers": ENCODER_LAYERS,
    "num_decoder_layers": DECODER_LAYERS,
}


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def model(**settings) -> Transformer:
    """A model in eval mode whose parameters are all different."""
    module = Transformer(VOCAB, D_MODEL, HEADS, ENCODER_LAYERS, DECODER_LAYERS, D_FF, pad_id=PAD, **settings)
    for seed, parameter in enumerate(module.parameters()):
        nn.init.normal_(parameter, mean=0.1, std=0.4, generator=torch.Generator().manual_seed(seed))
    return module.double().eval()


@pytest.mark.parametrize("norm_first", NORM_FIRST)
@pytest.mark.parametrize("bias", [True, False])
def test_in_eval_mode_the_module_is_the_function_on_its_state(norm_first, bias):
    module = model(norm_first=norm_first, bias=bias)
    params = module.state_dict()
    expected = transformer(SOURCE, TARGET, **COUNTS, pad_id=PAD, params=params, norm_first=norm_first)

    result = module(SOURCE.int(), TARGET.int())
    assert result._fields == ("logits", "memory", "decoded")
    assert result.logits.shape == (BATCH, SEQ, VOCAB)
    assert result.memory.shape == (BATCH, SOURCE_SEQ, D_MODEL)
    assert torch.equal(result.logits, expected.logits)
    assert torch.equal(result.memory, expected.memory)
    assert torch.equal(result.decoded, expected.decoded)


@pytest.mark.parametrize("bias", [True, False])
def test_the_state_is_named_as_the_contracts_name_it_and_loads_strictly(bias):
    def names(component: str) -> set[str]:
        contract = yaml.safe_load((ROOT / "contracts" / f"{component}.yaml").read_text(encoding="utf-8"))
        counts = {"encoder": ENCODER_LAYERS, "decoder": DECODER_LAYERS}
        found = set(contract.get("params", {}))
        for name, block in contract.get("blocks", {}).items():
            prefixes = [f"{name}.{i}" for i in range(counts[name])] if "repeat" in block else [name]
            found |= {f"{prefix}.{inner}" for prefix in prefixes for inner in names(block["component"])}
        return found

    expected = {n for n in names("transformer") if bias or not n.rpartition(".")[2].startswith("b_")}
    module = model(bias=bias, final_norm=True, max_positions=9)
    assert set(module.state_dict()) == expected == {name for name, _ in module.named_parameters()}
    assert {"table", "w_vocab", "encoder.2.self_attention.w_q", "decoder.1.cross_attention.w_o"} < expected
    other = Transformer(VOCAB, D_MODEL, HEADS, 3, 2, D_FF, pad_id=PAD, bias=bias, final_norm=True, max_positions=9)
    other.load_state_dict(module.state_dict())
    assert set(model(bias=bias, tied=True).state_dict()) == {
        n for n in expected if not n.startswith(("w_vocab", "position_table", "encoder_norm", "decoder_norm"))
    }


@pytest.mark.parametrize("bias", [True, False])
def test_a_tied_model_is_one_with_the_transposed_table(bias):
    tied = model(tied=True, bias=bias)
    params = tied.state_dict()
    apart = transformer(
        SOURCE, TARGET, **COUNTS, pad_id=PAD, params={**params, "w_vocab": params["table"].T.contiguous()}
    )
    close(tied(SOURCE, TARGET).logits, apart.logits)
    # Both uses of the table reach its gradient.
    tied(SOURCE, TARGET).logits.sum().backward()
    table, w_vocab = (params["table"].clone().requires_grad_() for _ in range(2))
    both = transformer(SOURCE, TARGET, **COUNTS, pad_id=PAD, params={**params, "table": table, "w_vocab": w_vocab.T})
    both.logits.sum().backward()
    assert table.grad is not None
    assert w_vocab.grad is not None
    assert tied.table.grad is not None
    close(tied.table.grad, table.grad + w_vocab.grad)


@pytest.mark.parametrize("fixed_pad_row", [False, True])
def test_padding_trains_its_row_unless_it_is_fixed(fixed_pad_row):
    module = model(fixed_pad_row=fixed_pad_row)
    module(SOURCE, TARGET).logits.sum().backward()
    gradient = module.table.grad
    assert gradient is not None
    assert bool((gradient[PAD] == 0).all()) is fixed_pad_row
    assert bool((gradient[1] != 0).any())


MISSING_PARTS = {
    "beta": ({"decoder_norm.beta": None}, TypeError, "decoder_norm.beta is of type NoneType"),
    "one of two stacks": (
        {"encoder_norm.gamma": None, "encoder_norm.beta": None}, TypeError, "encoder_norm.gamma is of type NoneType"
    ),
    "positions": (
        {"position_table": torch.ones(6, D_MODEL, dtype=torch.float64)}, ValueError,
        "must have a row for each of the 7 positions of source: cut source, or pass a longer table",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "message"), MISSING_PARTS.values(), ids=MISSING_PARTS)
def test_a_part_of_the_parameters_is_refused(changed, error, message):
    params = model(final_norm=True, max_positions=9).state_dict() | changed
    present = {name: tensor for name, tensor in params.items() if tensor is not None}
    with pytest.raises(error, match=message):
        transformer(SOURCE, TARGET, **COUNTS, pad_id=PAD, params=present)


def test_decoding_needs_a_position_for_each_word_that_it_may_write():
    module = model(max_positions=9)
    words: dict[str, Any] = {"bos_id": 1, "eos_id": 2}
    greedy_decode(module, SOURCE, max_length=9, **words)
    with pytest.raises(ValueError, match="for each of the 10 positions of max_length"):
        greedy_decode(module, SOURCE, max_length=10, **words)
    with pytest.raises(ValueError, match="for each of the 10 positions of max_length"):
        beam_search(module, SOURCE, max_length=10, beam_size=2, top_beams=1, **words)


def test_decoding_a_prefix_gives_the_rows_of_the_whole():
    module = model()
    target = shift_right(torch.tensor([[13, 0, 26, 9, 2], [2, 3, 5, 8, 2], [21, 22, 23, 24, 2]]), 1)
    memory = module.encode(SOURCE)
    whole = module.decode(target, memory, SOURCE)
    assert torch.equal(whole, module(SOURCE, target).decoded)
    assert torch.equal(module.score(whole), module(SOURCE, target).logits)
    assert torch.equal(memory, module(SOURCE, target).memory)

    for length in range(1, SEQ):
        close(module.decode(target[:, :length], memory, SOURCE), whole[:, :length])


def test_training_draws_dropout_also_on_what_enters_the_layers():
    module = model(dropout=0.5)
    quiet = module(SOURCE, TARGET).logits
    assert torch.equal(module(SOURCE, TARGET).logits, quiet)

    entering = []
    module.encoder[0].register_forward_pre_hook(lambda _, given: entering.append(given[0]))
    module.decoder[0].register_forward_pre_hook(lambda _, given: entering.append(given[0]))
    first, second = (module.train()(SOURCE, TARGET).logits for _ in range(2))
    assert not torch.equal(first, second)
    for x, ids in zip(entering, (SOURCE, TARGET), strict=False):
        # About half is dropped, the rest is doubled; seven standard errors to either side.
        assert (x == 0).double().mean().item() == pytest.approx(0.5, abs=3.5 / math.sqrt(x.numel()))
        close(x[x != 0], 2 * positional_encoding(module.table[ids])[x != 0])
    assert torch.equal(module.eval()(SOURCE, TARGET).logits, quiet)
    named = Transformer(5, 4, 2, 1, 1, 3, pad_id=0).named_modules()
    rates = [part.p for name, part in named if isinstance(part, nn.Dropout) and "attention" not in name]
    assert rates == [0.1] * 5


def peak() -> float:
    """The most memory that this process has held, in GiB; macOS counts in bytes, Linux in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (30 if sys.platform == "darwin" else 20)


def test_the_shapes_of_n9_at_full_size():
    before = peak()
    module = Transformer(10000, 512, 8, 6, 6, 2048, pad_id=0).eval()
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(10000, (32, 10), generator=generator)
    target = torch.randint(10000, (32, 20), generator=generator)
    with torch.no_grad():
        result = module(source, target)

    assert result.logits.shape == (32, 20, 10000)
    assert result.memory.shape == (32, 10, 512)
    assert result.logits.isfinite().all()
    # Parameters take a quarter of a GiB, logits a fortieth.
    assert peak() - before < 2
