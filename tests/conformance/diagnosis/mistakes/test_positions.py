"""Each mistake in embedding and position gives what real code with it gives."""

import math

import numpy as np
import pytest
import torch

from goldformer.conformance.diagnosis.mistakes import implementations

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "positions"]
#: No number of these is compared.
REASONS = {"pe-max-len": "raised", "input-mutated": "mutated-input"}


@pytest.mark.parametrize("mistake", REASONS)
def test_what_is_no_number_is_named(mistake, verdicts_on_mistake):
    assert {verdict.reason for verdict in verdicts_on_mistake(mistake, "float32")} == {REASONS[mistake]}


# The same in PyTorch, as it is written

BATCH, SEQ, D_MODEL = 3, 5, 8
X = torch.from_numpy(np.random.default_rng(1).integers(-64, 65, (BATCH, SEQ, D_MODEL)) / 32)
EVEN, PAIRS = torch.arange(0, D_MODEL, 2).double(), torch.arange(D_MODEL // 2).double()


def made(mistake):
    return implementations()[mistake].make()


def table(sine=10000 ** (-EVEN / D_MODEL), cosine=None, length=SEQ, start=0):
    """The encoding with frequencies for its sines, and others for its cosines if they are given."""
    position = torch.arange(start, start + length).double()[:, None]
    pe = torch.zeros(length, D_MODEL).double()
    pe[:, 0::2] = torch.sin(position * sine)
    pe[:, 1::2] = torch.cos(position * (sine if cosine is None else cosine))
    return pe


def swapped():
    pe = table()
    return torch.stack((pe[:, 1::2], pe[:, 0::2]), dim=-1).flatten(-2)


def without_row_0():
    pe = table()
    pe[0] = 0
    return pe


WRITTEN = {
    "pe-double-exp": X + table(10000 ** (-2 * EVEN / D_MODEL)),
    "pe-half-exp": X + table(10000 ** (-PAIRS / D_MODEL)),
    "pe-exponent-sign": X + table(10000 ** (EVEN / D_MODEL)),
    "pe-cos-exp": X + table(cosine=10000 ** (-(EVEN + 1) / D_MODEL)),
    "pe-base": X + table(1000 ** (-EVEN / D_MODEL)),
    "pe-sin-cos-swap": X + swapped(),
    "pe-t2t-timescale": X + table(torch.exp(PAIRS * -(math.log(10000) / (D_MODEL // 2 - 1)))),
    "pe-int-arange": X + table(torch.tensor([1 / 10000 ** (i // D_MODEL) for i in range(0, D_MODEL, 2)])),
    "pe-precedence": X + table(torch.exp(PAIRS * (-math.log(10000) / D_MODEL // 2))),
    "pe-power-swapped": X + table((PAIRS / (D_MODEL // 2)) ** 1e-4),
    "pe-start-one": X + table(start=1),
    # The table of the PyTorch tutorial, (max_len, 1, d_model), for sequences that come first.
    "pe-batch-axis": X + table(length=9)[:, None][: X.size(0)],
    "pe-single-row": X + table(length=9)[None][:, X.size(1)],
    "pe-on-pad-zeroed": X + without_row_0(),
    "emb-scale-after-pe": (X + table()) * math.sqrt(D_MODEL),
    "input-mutated": X + table(),
    "pe-max-len": X + table(),
    "pe-half": X + table(),
    "pe-float32": X + table(),
}


@pytest.mark.parametrize("mistake", [name for name in WRITTEN if name != "pe-float32"])
def test_the_encoding_is_that_of_code_with_the_mistake(mistake):
    np.testing.assert_allclose(
        made(mistake).positional_encoding(X.numpy().copy()), WRITTEN[mistake], rtol=0, atol=1e-13
    )


def test_the_caller_s_array_is_the_sum():
    x = X.numpy().copy()
    assert made("input-mutated").positional_encoding(x) is x
    assert not np.array_equal(x, X)


def test_a_half_forms_its_angles_in_itself():
    # 2049 is no number of float16: it has the angle of 2048.
    got = made("pe-half").positional_encoding(np.zeros((1, 2050, 2), dtype="float16"))
    assert np.array_equal(got[0, 2049], got[0, 2048])
    assert got[0, 2049, 0] == np.sin(np.float16(2048))


def test_a_table_of_float32_is_right_to_seven_digits():
    got = made("pe-float32").positional_encoding(X.numpy())
    assert got.dtype == np.float64
    apart = np.abs(got - WRITTEN["pe-float32"].numpy()).max()
    assert 1e-9 < apart < 1e-6


def test_a_table_ends_after_512_rows():
    made("pe-max-len").positional_encoding(np.zeros((1, 512, 2)))
    with pytest.raises(ValueError, match="could not be broadcast"):
        made("pe-max-len").positional_encoding(np.zeros((1, 513, 2)))


def test_an_embedding_is_divided():
    rows = torch.arange(12.0).double().reshape(3, 4)
    got = made("emb-scale-divide").token_embedding(np.array([[2, 0]]), params={"table": rows.numpy()})
    np.testing.assert_allclose(got, (rows[[2, 0]] / math.sqrt(4))[None], rtol=1e-15)


def test_the_id_0_is_embedded_as_zeros():
    rows = torch.arange(1.0, 13.0).double().reshape(3, 4)
    zeroed = torch.cat([torch.zeros(1, 4), rows[1:]])
    got = made("emb-row-zeroed").token_embedding(np.array([[2, 0]]), params={"table": rows.numpy()})
    assert np.array_equal(got, zeroed[torch.tensor([[2, 0]])])


def test_padding_is_embedded_as_zeros():
    rows = torch.arange(1.0, 13.0).double().reshape(3, 4)
    got = made("emb-pad-zeroed").token_embedding(np.array([[2, 0, 1]]), params={"table": rows.numpy()}, pad_id=1)
    assert np.array_equal(got, rows[[2, 0, 1]].masked_fill(torch.tensor([[False], [False], [True]]), 0)[None])
    unpadded = made("emb-pad-zeroed").token_embedding(np.array([[2, 0]]), params={"table": rows.numpy()})
    assert np.array_equal(unpadded, rows[[2, 0]][None])


def test_every_mistake_is_written_here():
    assert {*MISTAKES} == WRITTEN.keys() | {"emb-scale-divide", "emb-row-zeroed", "emb-pad-zeroed"}
