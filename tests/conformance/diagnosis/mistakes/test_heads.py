"""Each mistake in attention of several heads gives what real code with it gives."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from goldformer.conformance.diagnosis.mistakes import implementations

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "heads"]
#: No number of these is compared.
REASONS = {"d-model-not-divisible": "no-error", "weights-averaged": "wrong-shape"}


@pytest.mark.parametrize("mistake", REASONS)
def test_what_is_no_number_is_named(mistake, verdicts_on_mistake):
    assert {verdict.reason for verdict in verdicts_on_mistake(mistake, "float32")} == {REASONS[mistake]}


# The same in PyTorch, as it is written

HEADS, WIDTH, Q_SEQ, KV_SEQ = 3, 12, 5, 7


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 64)


PARAMS = {f"w_{role}": draw(seed, WIDTH, WIDTH) for seed, role in enumerate("qkvo")}
PARAMS |= {f"b_{role}": draw(seed + 4, WIDTH) for seed, role in enumerate("qkvo")}


class Usual:
    """Multi-head attention as it is usually written, each of its parts to be written otherwise."""

    def __init__(self, **parts):
        for name, part in parts.items():
            setattr(self, name, part)

    def linear(self, x, role):
        return x @ PARAMS[f"w_{role}"] + PARAMS[f"b_{role}"]

    def split(self, x):
        return x.view(len(x), -1, HEADS, WIDTH // HEADS).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).reshape(len(x), -1, WIDTH)

    def roles(self, q, k, v):
        return q, k, v

    def scale(self, scores):
        return scores / math.sqrt(WIDTH // HEADS)

    def mask(self, mask):
        return mask

    def run(self, query, key, value, mask):
        q, k, v = (self.split(self.linear(x, role)) for x, role in ((query, "q"), (key, "k"), (value, "v")))
        q, k, v = self.roles(q, k, v)
        scores = self.scale(q @ k.transpose(-2, -1))
        weights = scores.masked_fill(~self.mask(mask).expand_as(scores), -1e9).softmax(-1)
        return self.linear(self.merge(weights @ v), "o"), weights


def except_for(role, instead):
    """A linear map that is another one for one role."""
    return lambda x, r: instead(x) if r == role else Usual().linear(x, r)


def relu_at_the_end(x, role):
    return torch.relu(Usual().linear(x, role)) if role == "o" else Usual().linear(x, role)


def relu_before_attention(x, role):
    return Usual().linear(x, role) if role == "o" else torch.relu(Usual().linear(x, role))


def first_head_for_all(x, role):
    columns = slice(None) if role == "o" else list(range(WIDTH // HEADS)) * HEADS
    return x @ PARAMS[f"w_{role}"][:, columns] + PARAMS[f"b_{role}"][columns]


def repeated(mask):
    """Repeat masks as a whole, to (batch · heads, q_seq, kv_seq)."""
    return mask[:, 0].repeat(HEADS, 1, 1).view(-1, HEADS, *mask.shape[2:])


WRITTEN = {
    "head-split-view": Usual(split=lambda x: x.view(len(x), HEADS, x.size(1), -1)),
    "head-merge-view": Usual(merge=lambda x: x.reshape(len(x), x.size(2), -1)),
    "head-view-both-ways": Usual(
        split=lambda x: x.view(len(x), HEADS, x.size(1), -1), merge=lambda x: x.reshape(len(x), x.size(2), -1)
    ),
    "head-merge-hb": Usual(
        merge=lambda x: x.transpose(0, 1).permute(0, 2, 1, 3).contiguous().view(len(x), -1, WIDTH),
    ),
    "head-interleaved": Usual(split=lambda x: x.view(len(x), x.size(1), -1, HEADS).permute(0, 3, 1, 2)),
    "head-shared-w": Usual(linear=first_head_for_all),
    "w-transposed": Usual(linear=lambda x, role: functional.linear(x, PARAMS[f"w_{role}"], PARAMS[f"b_{role}"])),
    "qkv-relu": Usual(linear=relu_before_attention),
    "wo-missing": Usual(linear=except_for("o", lambda x: x)),
    "wo-relu": Usual(linear=relu_at_the_end),
    "wo-bias-per-head": Usual(linear=except_for("o", lambda x: Usual().linear(x, "o") + 2 * PARAMS["b_o"])),
    "bias-missing": Usual(linear=lambda x, role: x @ PARAMS[f"w_{role}"]),
    "v-proj-missing": Usual(linear=except_for("v", lambda x: x)),
    "kv-swap": Usual(roles=lambda q, k, v: (q, v, k)),
    "qk-same-layer": Usual(linear=except_for("k", lambda x: Usual().linear(x, "q"))),
    "keys-by-w-v": Usual(linear=except_for("k", lambda x: Usual().linear(x, "v"))),
    "values-by-w-k": Usual(linear=except_for("v", lambda x: Usual().linear(x, "k"))),
    "scale-d-model": Usual(scale=lambda scores: scores / math.sqrt(WIDTH)),
    "scale-twice": Usual(scale=lambda scores: scores / (WIDTH // HEADS)),
    "mask-repeat-order": Usual(mask=repeated),
    "mask-broadcast-bh": Usual(mask=lambda mask: mask.squeeze(1)),
    "mask-first-sample": Usual(mask=lambda mask: mask[0]),
    "mask-first-head": Usual(mask=lambda mask: mask[:, :1]),
    # Where the heads divide the width, all is right.
    "d-model-not-divisible": Usual(),
    # Not of multi-head attention, in which all is right:
    "qkv-layout": Usual(),
    "causal-missing": Usual(),
}


def made(mistake):
    return implementations()[mistake].make()


def inputs(batch):
    """Query, key, value, and a mask that keeps another number of keys in each sample."""
    lengths = torch.tensor([7, 4, 2])[:batch]
    mask = (torch.arange(KV_SEQ) < lengths[:, None])[:, None, None, :].expand(-1, -1, Q_SEQ, -1)
    return draw(11, batch, Q_SEQ, WIDTH), draw(12, batch, KV_SEQ, WIDTH), draw(13, batch, KV_SEQ, WIDTH), mask


def outputs(returned):
    """Return the outputs in one order, by name or not."""
    return list(returned.values() if isinstance(returned, dict) else returned)


def multi_head(mistake, *arguments):
    """Return output and weights."""
    params = {name: tensor.numpy() for name, tensor in PARAMS.items()}
    returned = made(mistake).multi_head_attention(*(x.numpy() for x in arguments), num_heads=HEADS, params=params)
    return outputs(returned)[:2]


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mistake", WRITTEN)
def test_attention_is_that_of_code_with_the_mistake(mistake):
    # Samples that meet heads fit only if there are as many.
    arguments = inputs(batch=HEADS if mistake == "mask-broadcast-bh" else 2)
    output, weights = WRITTEN[mistake].run(*arguments)
    got, got_weights = multi_head(mistake, *arguments)
    close(got, output)
    close(got_weights, weights)


def test_samples_that_are_no_heads_do_not_fit():
    with pytest.raises(ValueError, match=r"shape \(2, 5, 7\) does not broadcast"):
        multi_head("mask-broadcast-bh", *inputs(batch=2))


def test_a_mask_without_samples_is_no_matter_of_samples():
    query, key, value, _ = inputs(batch=2)
    mask = torch.ones(Q_SEQ, KV_SEQ).tril().bool()
    expected, _ = Usual().run(query, key, value, mask)
    for mistake in ("mask-repeat-order", "mask-broadcast-bh", "mask-first-sample", "mask-first-head"):
        close(multi_head(mistake, query, key, value, mask)[0], expected)


def test_a_token_attends_to_the_other_samples():
    query, _, _, _ = inputs(batch=2)
    every = torch.ones(1).bool()
    x = query.transpose(0, 1)
    output, weights = Usual().run(x, x, x, every)
    got, got_weights = multi_head("seq-batch-swap", query, query, query)
    close(got, output.transpose(0, 1))
    close(got_weights, weights)


@pytest.mark.parametrize("causal", [True, False])
def test_heads_attend_to_one_another(causal):
    query, _, _, _ = inputs(batch=2)
    q, k, v = (Usual().linear(query, role).unflatten(-1, (HEADS, -1)) for role in "qkv")
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    mask = [torch.ones(Q_SEQ, Q_SEQ).tril().bool()] if causal else []
    got, got_weights = multi_head("heads-as-sequence", query, query, query, *mask)
    close(got, Usual().linear(attended.flatten(2), "o"))
    assert got_weights.shape == (2, Q_SEQ, HEADS, HEADS)


def test_keys_are_projected_from_the_input_of_the_values():
    query, key, value, mask = inputs(batch=2)
    output, weights = Usual().run(query, value, value, mask)
    got, got_weights = multi_head("key-from-value-input", query, key, value, mask)
    close(got, output)
    close(got_weights, weights)


def test_the_mean_over_the_heads():
    arguments = inputs(batch=2)
    output, weights = Usual().run(*arguments)
    got, got_weights = multi_head("weights-averaged", *arguments)
    close(got, output)
    close(got_weights, weights.mean(1))


def test_the_sum_over_the_heads():
    arguments = inputs(batch=2)
    params = {name: tensor.numpy() for name, tensor in PARAMS.items()}
    call = made("average-weights-sum").multi_head_attention
    returned = call(*(x.numpy() for x in arguments), num_heads=HEADS, params=params)
    output, weights = Usual().run(*arguments)
    close(returned["output"], output)
    close(returned["weights"], weights)
    close(returned["average_weights"], weights.sum(1))


def test_columns_left_over_are_left_out():
    # Of ten columns three heads get three each: what is left are those of nine.
    got = []
    for columns in (10, 9):
        params = {name: tensor[..., :columns].numpy() for name, tensor in PARAMS.items() if name[-1] != "o"}
        params |= {"w_o": PARAMS["w_o"][:columns].numpy(), "b_o": PARAMS["b_o"].numpy()}
        arguments = (x.numpy() for x in inputs(batch=2))
        returned = made("d-model-not-divisible").multi_head_attention(*arguments, num_heads=HEADS, params=params)
        got.append(outputs(returned)[0])
    close(*got)


@pytest.mark.parametrize(
    ("mistake", "cut"),
    [
        ("qkv-layout", lambda qkv: qkv.view(2, Q_SEQ, 3, HEADS, -1).permute(2, 0, 3, 1, 4)),
        ("head-interleaved", lambda qkv: qkv.view(2, Q_SEQ, -1, 3, HEADS).permute(3, 0, 4, 1, 2)),
    ],
)
def test_the_fused_columns_are_those_of_code_with_the_mistake(mistake, cut):
    x, w_qkv = draw(15, 2, Q_SEQ, WIDTH), draw(16, WIDTH, 3 * WIDTH)
    q, k, v = cut(x @ w_qkv)
    weights = Usual().scale(q @ k.transpose(-2, -1)).softmax(-1)
    params = {"w_qkv": w_qkv.numpy(), "w_o": PARAMS["w_o"].numpy()}
    returned = made(mistake).fused_multi_head_attention(x.numpy(), num_heads=HEADS, params=params)
    got, got_weights, qkv = outputs(returned)[:3]
    close(got, Usual().merge(weights @ v) @ PARAMS["w_o"])
    close(got_weights, weights)
    close(qkv, x @ w_qkv)


def test_values_are_made_of_what_keys_are_made_of():
    query, key, value, mask = inputs(batch=2)
    expected, _ = Usual().run(query, key, key, mask)
    close(multi_head("value-from-key-input", query, key, value, mask)[0], expected)


def test_no_token_is_hidden_from_an_earlier_one():
    params = {name: PARAMS[name].numpy() for name in ("w_q", "w_k", "w_v")}
    x = draw(14, Q_SEQ, WIDTH).numpy()
    both = [made("causal-missing").single_head_attention(x, causal=causal, params=params) for causal in (True, False)]
    assert np.array_equal(both[0]["weights"], both[1]["weights"])


def test_every_mistake_is_written_here():
    assert {*MISTAKES} == WRITTEN.keys() | {
        "seq-batch-swap",
        "heads-as-sequence",
        "weights-averaged",
        "key-from-value-input",
        "value-from-key-input",
        "average-weights-sum",
    }
