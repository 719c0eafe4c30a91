"""Each mistake in the model gives what PyTorch code with it gives."""

import numpy as np
import pytest
import torch

import reference_functions
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations, torch_implementations

COMPONENTS = {"transformer", "output_probabilities", "pad_or_truncate", "shift_right", "one_hot"}
MISTAKES = [id_ for id_, m in implementations().items() if m.module == "transformer"]
#: Its result is one longer: there are no numbers to compare.
ONE_LONGER = "eos-fed-in"


def test_every_mistake_of_the_catalogue_is_made(spec):
    # What goes wrong in a backward pass alone, or what only tensors show, is made elsewhere.
    named = {m.id for m in spec.mistakes.values() if m.component in COMPONENTS and "-bwd" not in m.id}
    assert named - torch_implementations().keys() == {*MISTAKES}


def test_what_is_no_number_is_named(verdicts_on_mistake):
    assert {verdict.reason for verdict in verdicts_on_mistake(ONE_LONGER, "float32")} == {"wrong-shape"}


# The same in PyTorch, as it is written


def made(mistake):
    return implementations()[mistake].make()


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 64)


def arrays(thing):
    return {name: arrays(t) for name, t in thing.items()} if isinstance(thing, dict) else thing.numpy()


# No two alike; padding is no word of the source, and its id is not 0.
D_MODEL, D_FF, VOCAB, HEADS, PAD = 6, 7, 11, 2, 3
LAYERS = {"encoder": 3, "decoder": 2}
SOURCE = torch.tensor([[5, 0, 8, 4], [9, 10, PAD, PAD], [6, 7, 5, PAD]])
TARGET = torch.tensor([[1, 4, 2, 9, 5], [1, 6, 8, PAD, PAD], [1, 10, 0, 4, PAD]])
SHAPES: dict[str, tuple[int, ...]] = {
    f"{a}.w_{role}": (D_MODEL, D_MODEL) for a in ("self_attention", "cross_attention") for role in "qkvo"
}
SHAPES |= {"feed_forward.w_1": (D_MODEL, D_FF), "feed_forward.w_2": (D_FF, D_MODEL), "feed_forward.b_1": (D_FF,)}
SHAPES |= {f"norm_{n}.{own}": (D_MODEL,) for n in (1, 2, 3) for own in ("gamma", "beta")}
PARAMS = {"table": draw(1, VOCAB, D_MODEL), "w_vocab": draw(2, D_MODEL, VOCAB), "b_vocab": draw(3, VOCAB)}
for stack, layers in LAYERS.items():
    own = [name for name in SHAPES if stack == "decoder" or not name.startswith(("cross_attention", "norm_3"))]
    for number, name in ((i, name) for i in range(layers) for name in own):
        PARAMS[f"{stack}.{number}.{name}"] = draw(10 + len(PARAMS), *SHAPES[name])


def part(stack, index):
    start = f"{stack}.{index}."
    return {name.removeprefix(start): p for name, p in PARAMS.items() if name.startswith(start)}


def transformer(mistake):
    """The logits, with all that a mistake may change in plain sight."""
    embedded = [PARAMS["table"][ids] for ids in (SOURCE, TARGET)]
    encoded = [reference_functions.positional_encoding(x) for x in embedded]
    padding = [(ids == PAD)[..., None] for ids in (SOURCE, TARGET)]
    source_mask = (SOURCE != PAD)[:, None, None, :]
    target_mask = (TARGET != PAD)[:, None, None, :]
    if mistake == "pe-missing":
        encoded = embedded
    if mistake == "pad-mask-zeroes-positions":
        encoded = [x + (y - x) * hidden for x, y, hidden in zip(embedded, encoded, padding, strict=True)]
    if mistake == "pad-from-embedding-sum":
        source_mask, target_mask = ((x.abs().sum(-1) != 0)[:, None, None, :] for x in encoded)
    causal = torch.ones(5, 5).tril().bool()
    joined = {
        "tgt-pad-replaces-causal": target_mask, "tgt-masks-joined-or": target_mask | causal,
    }  # fmt: skip
    target_mask = joined.get(mistake, target_mask & causal)
    x, y = encoded
    memories = []
    for i in range(LAYERS["encoder"]):
        x = reference_functions.encoder_layer(x, source_mask, num_heads=HEADS, params=part("encoder", i)).output
        memories.append(x)
    for i in range(LAYERS["decoder"]):
        memory = {"cross-raw-src": encoded[0], "memory-per-layer": memories[i]}.get(mistake, x)
        masks = target_mask, source_mask
        y = reference_functions.decoder_layer(y, memory, *masks, num_heads=HEADS, params=part("decoder", i)).output
    logits = y @ PARAMS["w_vocab"] + PARAMS["b_vocab"]
    if mistake == "tied-logit-scale":
        return logits * D_MODEL**-0.5
    return logits.softmax(-1) if mistake == "softmax-in-model" else logits


IN_THE_MODEL = (
    "tgt-pad-replaces-causal", "pad-from-embedding-sum", "pe-missing", "pad-mask-zeroes-positions", "cross-raw-src",
    "tgt-masks-joined-or", "memory-per-layer", "softmax-in-model", "tied-logit-scale",
)  # fmt: skip


@pytest.mark.parametrize("mistake", IN_THE_MODEL)
def test_a_model_is_that_of_code_with_the_mistake(mistake):
    layers = {f"num_{stack}_layers": number for stack, number in LAYERS.items()}
    given = {"source": SOURCE, "target": TARGET}
    got = made(mistake).transformer(**arrays(given), num_heads=HEADS, **layers, pad_id=PAD, params=arrays(PARAMS))
    np.testing.assert_allclose(got["logits"], transformer(mistake), rtol=0, atol=1e-11)


def test_without_positions_the_order_of_the_source_makes_no_difference():
    layers = {f"num_{stack}_layers": number for stack, number in LAYERS.items()}
    given = {"target": TARGET.numpy(), "num_heads": HEADS, **layers, "pad_id": PAD, "params": arrays(PARAMS)}
    for mistake, alike in (("pe-missing", True), ("tied-logit-scale", False)):
        one, other = (made(mistake).transformer(ids.numpy(), **given)["logits"] for ids in (SOURCE, SOURCE.flip(1)))
        assert np.allclose(one, other, rtol=0, atol=1e-11) == alike


X = draw(5, 2, 3, D_MODEL)
OUTPUT_LAYER = {name: PARAMS[name] for name in ("w_vocab", "b_vocab")}


def test_a_softmax_before_the_linear_map_leaves_no_distribution():
    given = made("softmax-before-linear").output_probabilities(X.numpy(), params=arrays(OUTPUT_LAYER))
    assert [*given] == ["probabilities"]
    want = X.softmax(-1) @ PARAMS["w_vocab"] + PARAMS["b_vocab"]
    np.testing.assert_allclose(given["probabilities"], want, rtol=0, atol=1e-14)


def test_scaled_logits_are_scaled_in_the_output_layer_too():
    given = made("tied-logit-scale").output_probabilities(X.numpy(), params=arrays(OUTPUT_LAYER))
    want = (X @ PARAMS["w_vocab"] + PARAMS["b_vocab"]) * D_MODEL**-0.5
    np.testing.assert_allclose(given["logits"], want, rtol=0, atol=1e-14)
    np.testing.assert_allclose(given["probabilities"], want.softmax(-1), rtol=0, atol=1e-14)


def test_a_model_that_gives_probabilities_has_an_output_layer_that_is_right():
    given = made("softmax-in-model").output_probabilities(X.numpy(), params=arrays(OUTPUT_LAYER))
    want = X @ PARAMS["w_vocab"] + PARAMS["b_vocab"]
    np.testing.assert_allclose(given["logits"], want, rtol=0, atol=1e-14)


def test_memories_by_layer_are_taken_one_by_one_from_an_array_of_them_alone():
    params = {name: p for name, p in PARAMS.items() if name.startswith("decoder")}
    given = {"num_heads": HEADS, "num_layers": LAYERS["decoder"], "params": arrays(params)}
    x, memory = draw(6, 3, 5, D_MODEL), draw(7, 3, 4, D_MODEL)
    one, each = (
        made("memory-per-layer").decoder(x.numpy(), m.numpy(), **given) for m in (memory, torch.stack([memory] * 2))
    )
    assert np.array_equal(one["output"], each["output"])


#: Where the parameters decide for a tied output or learned positions.
OF_PARAMS = ("tied-not-transposed", "tied-output-scaled", "learned-positions-from-one")


@pytest.mark.parametrize("mistake", OF_PARAMS[:2])
def test_the_tied_table_is_used_as_in_code_with_the_mistake(mistake):
    table = PARAMS["table"]
    weight = table.view(D_MODEL, VOCAB) if mistake == "tied-not-transposed" else table.T * D_MODEL**0.5
    # The model of the mistake and one without it, whose output layer has a matrix of its own.
    layers = {f"num_{stack}_layers": number for stack, number in LAYERS.items()}
    given = {"source": SOURCE.numpy(), "target": TARGET.numpy(), "num_heads": HEADS, **layers, "pad_id": PAD}
    tied = {name: p for name, p in PARAMS.items() if name not in ("w_vocab", "b_vocab")}
    right = build_textbook().transformer(**given, params=arrays(PARAMS))
    got = made(mistake).transformer(**given, params=arrays(tied))
    np.testing.assert_allclose(got["logits"], right["decoded"] @ weight.numpy(), rtol=0, atol=1e-11)


def test_learned_positions_that_count_from_one():
    position_table = draw(8, TARGET.shape[1] + 1, D_MODEL)
    layers = {f"num_{stack}_layers": number for stack, number in LAYERS.items()}
    given = {"source": SOURCE.numpy(), "target": TARGET.numpy(), "num_heads": HEADS, **layers, "pad_id": PAD}
    params = PARAMS | {"position_table": position_table}
    got = made("learned-positions-from-one").transformer(**given, params=arrays(params))
    written = (PARAMS["table"][TARGET] + position_table[1:]).numpy()
    np.testing.assert_allclose(got["target_embedded"], written, rtol=0, atol=1e-14)
    # It is right with a table whose row 0 nobody reads.
    right = build_textbook().transformer(**given, params=arrays(PARAMS | {"position_table": position_table[1:]}))
    np.testing.assert_allclose(got["logits"], right["logits"], rtol=0, atol=1e-11)


SHIFTED = {"shift-missing": [[4, 7, 2]], "shift-double": [[9, 9, 4]], "eos-fed-in": [[9, 4, 7, 2]]}


@pytest.mark.parametrize("mistake", SHIFTED)
def test_a_target_is_shifted_as_by_code_with_the_mistake(mistake):
    assert made(mistake).shift_right(np.array([[4, 7, 2]]), bos_id=9).tolist() == SHIFTED[mistake]


def test_every_mistake_is_written_here():
    assert {*MISTAKES} == {*IN_THE_MODEL, *SHIFTED, *OF_PARAMS, "softmax-before-linear"}
