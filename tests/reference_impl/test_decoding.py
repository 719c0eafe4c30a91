"""Greedy decoding and beam search against sentences searched one by one, in plain Python."""

import itertools
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from goldformer import reference_impl
from goldformer.reference_impl import (
    Transformer,
)
from goldformer.reference_impl.decoding import Finish, LengthPenalty
from reference_functions import (
    beam_search,
    greedy_decode,
    transformer,
)

HEADS, SOURCE_SEQ, D_MODEL, D_FF, VOCAB, ENCODER_LAYERS, DECODER_LAYERS = 2, 5, 6, 11, 7, 1, 2
PAD, BOS, EOS = 4, 1, 3
SOURCE = torch.tensor([[5, 0, 6, 6, 2], [2, 0, 1, PAD, PAD], [6, 2, PAD, PAD, PAD], [0, 0, 5, 3, PAD]])
BATCH = len(SOURCE)
COUNTS: dict[str, Any] = {
    "num_heads": HEADS,
    "num_encoder_layers": ENCODER_LAYERS,
    "num_decoder_layers": DECODER_LAYERS,
}
WORDS = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}

FINISHES: list[Finish] = ["in_beam", "set_aside"]
PENALTIES: list[LengthPenalty] = ["none", "mean", "gnmt"]
# Their sentences end after one word, after some and not at all, and every two rules find different ones.
SEEDS = (0, 2, 5)
RULES = list(itertools.product(FINISHES, PENALTIES))
every_rule = pytest.mark.parametrize(("finish", "length_penalty"), RULES)
every_decoding = pytest.mark.parametrize(
    "keywords",
    [{}, *({"beam_size": 3, "top_beams": 3, "finish": finish, "length_penalty": how} for finish, how in RULES)],
    ids=["greedy", *map("-".join, RULES)],
)


def model(seed: int = 2, vocab: int = VOCAB, dtype: torch.dtype = torch.float64, **settings: Any) -> Transformer:
    """A model in eval mode whose sentences end at different steps, and whose words depend on those before."""
    module = Transformer(vocab, D_MODEL, HEADS, ENCODER_LAYERS, DECODER_LAYERS, D_FF, pad_id=PAD, **settings)
    module.double()  # drawn in float64 whatever the dtype
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if parameter.ndim == 2:  # gammas stay 1 and biases 0: random ones would drown what is read
            nn.init.normal_(parameter, std={"table": 3.0, "w_vocab": 0.6}.get(name, 0.7), generator=generator)
    with torch.no_grad():
        module.b_vocab[EOS] = 0.5
    return module.to(dtype).eval()


def steered(logits: dict[int, float], **settings: Any) -> Transformer:
    """A model that gives each word the same logit whatever it reads, 0 where nothing else is said."""
    module = model(**settings)
    with torch.no_grad():
        module.w_vocab.zero_()
        module.b_vocab.zero_()
        for word, logit in logits.items():
            module.b_vocab[word] = logit
    return module


def close(got: Tensor, expected: Tensor | list[Any], atol: float = 1e-12) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=atol)


class Sentence(NamedTuple):
    words: tuple[int, ...] = ()
    total: float = 0.0

    @property
    def ended(self) -> bool:
        return self.words[-1:] == (EOS,)

    def score(self, length_penalty: str) -> float:
        n = len(self.words)
        divisors: dict[str, float] = {"none": 1.0, "mean": n, "gnmt": ((5 + n) / 6) ** 0.6}
        return self.total / divisors[length_penalty]

    def padded(self, max_length: int) -> list[int]:
        return [*self.words] + [PAD] * (max_length - len(self.words))


Speaker = Callable[[tuple[int, ...]], list[float]]


def speaker(module: Transformer, source: Tensor, norm_first: bool = False) -> Speaker:
    """The logarithms of what the model says next, for one source alone and the whole beginning at each step."""
    params = module.state_dict()

    @cache
    def next_word(words: tuple[int, ...]) -> list[float]:
        target = torch.tensor([[BOS, *words]])
        result = transformer(source[None], target, **COUNTS, pad_id=PAD, params=params, norm_first=norm_first)
        return result.logits[0, -1].log_softmax(dim=-1).tolist()

    return next_word


@cache
def speaker_of(seed: int, sample: int) -> Speaker:
    """The same for the models of most tests, which ask again and again."""
    return speaker(model(seed), SOURCE[sample])


def extended(sentence: Sentence, speak: Speaker) -> list[Sentence]:
    scores = speak(sentence.words)
    return [Sentence((*sentence.words, word), sentence.total + scores[word]) for word in range(len(scores))]


def search(
    speak: Speaker, max_length: int, beam_size: int, top_beams: int, finish: str, length_penalty: str
) -> list[Sentence]:
    """BEAM-1 to BEAM-4, one sentence after the other."""

    def best_first(sentences: list[Sentence]) -> list[Sentence]:
        return sorted(sentences, key=lambda sentence: -sentence.score(length_penalty))  # equals stay in order

    beam, aside = [Sentence()], []
    for _ in range(max_length):
        extensions = []
        for sentence in beam:
            extensions += [sentence] if sentence.ended else extended(sentence, speak)
        extensions = best_first(extensions)
        if finish == "in_beam":
            beam = extensions[:beam_size]
            if all(sentence.ended for sentence in beam):
                break
        else:
            aside += [sentence for sentence in extensions[:beam_size] if sentence.ended]
            beam = [sentence for sentence in extensions if not sentence.ended][:beam_size]
            if len(aside) >= beam_size:
                beam = []
                break
    return best_first(aside + beam)[:top_beams]


def decoded(module: Transformer, source: Tensor = SOURCE, /, max_length: int = 5, **keywords: Any) -> Any:
    """The sentences of a module: of beam search where beam_size is given, else of greedy decoding."""
    decode = reference_impl.beam_search if "beam_size" in keywords else reference_impl.greedy_decode
    words = {"bos_id": BOS, "eos_id": EOS, "max_length": max_length}
    with torch.no_grad():
        return decode(module, source, **{**words, **keywords})


@pytest.mark.sample(8)
@every_rule
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
def test_beam_search_keeps_what_a_search_sentence_by_sentence_keeps(finish, length_penalty, beam_size):
    rules = {"finish": finish, "length_penalty": length_penalty}
    for seed in SEEDS:
        module = model(seed)
        result = decoded(module, beam_size=beam_size, top_beams=beam_size, **rules)
        fewer = decoded(module, beam_size=beam_size, top_beams=1, **rules)
        assert result.ids.shape == (BATCH, beam_size, 5)
        assert result.scores.shape == (BATCH, beam_size)
        assert torch.equal(fewer.ids, result.ids[:, :1])
        assert torch.equal(fewer.scores, result.scores[:, :1])
        for b in range(BATCH):
            expected = search(speaker_of(seed, b), 5, beam_size, beam_size, **rules)
            assert result.ids[b].tolist() == [sentence.padded(5) for sentence in expected]
            close(result.scores[b], [sentence.score(length_penalty) for sentence in expected])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_log_probabilities_are_not_rounded_to_a_half_type_before_they_are_compared(dtype):
    # The logits of 5 and 6 are neighbours near 1/16; near −1.9 their log-probabilities would be rounded to one.
    module = steered({5: 1 / 16, 6: 1 / 16 * (1 + torch.finfo(dtype).eps)}, dtype=dtype)
    for finish in FINISHES:
        assert decoded(module).ids.tolist() == [[6] * 5] * BATCH
        assert decoded(module, beam_size=1, top_beams=1, finish=finish).ids.tolist() == [[[6] * 5]] * BATCH


def test_bos_id_and_pad_id_may_be_chosen():
    for word in (BOS, PAD):
        module = steered({word: 2.0})
        greedy = decoded(module)
        assert greedy.ids.tolist() == [[word] * 5] * BATCH
        assert (greedy.token_scores < 0).all()
        beam = decoded(module, beam_size=2, top_beams=1)
        assert beam.ids[:, 0].tolist() == greedy.ids.tolist()
        close(beam.scores[:, 0], greedy.scores)


@pytest.mark.parametrize("finish", FINISHES)
def test_ids_of_one_word_may_have_two_meanings(finish):
    # The bos_id that every target begins with ends nothing, also where it is the eos_id.
    module = model()
    for words in ({"bos_id": EOS}, {"eos_id": PAD}, {"bos_id": PAD}, {"bos_id": PAD, "eos_id": PAD}):
        bos_id, eos_id = words.get("bos_id", BOS), words.get("eos_id", EOS)
        greedy = decoded(module, **words)
        for b in range(BATCH):
            said: list[int] = []
            while len(said) < 5 and eos_id not in said:
                target = torch.tensor([[bos_id, *said]])
                said.append(int(module(SOURCE[b : b + 1], target).logits[0, -1].argmax()))
            assert greedy.ids[b].tolist() == said + [PAD] * (5 - len(said))
        beam = decoded(module, **words, beam_size=1, top_beams=1, finish=finish)
        assert torch.equal(beam.ids[:, 0], greedy.ids)
        close(beam.scores[:, 0], greedy.scores)


@pytest.mark.parametrize("pad_id", [-1, VOCAB, 2**62 + 1])
@every_decoding
def test_pad_id_need_be_no_word(pad_id, keywords):
    decode = beam_search if keywords else greedy_decode
    given = {**COUNTS, **WORDS, "pad_id": pad_id, "max_length": 5, "params": model().state_dict(), **keywords}
    source = SOURCE[:, :2]
    together = decode(source, **given)
    for b in range(BATCH):
        assert torch.equal(decode(source[b : b + 1], **given).ids[0], together.ids[b])
    behind = (together.ids == EOS).cumsum(dim=-1) - (together.ids == EOS).long() > 0

    # One waits for another, and reads what is a word meanwhile.
    assert 0 < behind[..., -1].sum() < behind[..., -1].numel()
    assert torch.equal(together.ids == pad_id, behind)


@every_rule
def test_a_vocabulary_may_be_smaller_than_the_beam(finish, length_penalty):
    # One word besides eos_id: there is one sentence of every length, and one without an end.
    rules = {"finish": finish, "length_penalty": length_penalty, "beam_size": 9}
    module = Transformer(2, D_MODEL, HEADS, 1, 1, D_FF, pad_id=0).double()
    with torch.no_grad():
        module.w_vocab.zero_()
        module.b_vocab.copy_(torch.tensor([0.5, 0.0]))
    source = torch.tensor([[1, 1, 0]])
    result = decoded(module, source, bos_id=0, eos_id=1, max_length=3, top_beams=4, **rules)
    assert sorted(result.ids[0].tolist()) == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert result.scores.isfinite().all()

    message = (
        "top_beams=5 must be at most 4, the number of sentences that there are for sample 0: "
        "ask for fewer, or pass a larger max_length"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        decoded(module, source, bos_id=0, eos_id=1, max_length=3, top_beams=5, **rules)


@pytest.mark.parametrize("finish", FINISHES)
def test_a_vocabulary_of_one_word_has_one_sentence(finish):
    module = Transformer(1, D_MODEL, HEADS, 1, 1, D_FF, pad_id=-1)
    words: dict[str, Any] = {"bos_id": 0, "eos_id": 0, "max_length": 3}
    result = decoded(module, torch.tensor([[0]]), **words, beam_size=2, top_beams=1, finish=finish)

    assert result.ids.tolist() == [[[0, -1, -1]]]
    assert result.scores.tolist() == [[0.0]]


@pytest.mark.parametrize("finish", FINISHES)
def test_a_word_of_probability_0_is_in_no_sentence(finish):
    module = steered(dict.fromkeys((0, 1, 2, 4, 6), -math.inf))
    result = decoded(module, max_length=2, beam_size=4, top_beams=3, finish=finish)
    assert sorted(result.ids[0].tolist()) == [[EOS, PAD], [5, EOS], [5, 5]]

    message = "top_beams=4 must be at most 3, the number of sentences that there are for sample 0: "
    with pytest.raises(ValueError, match=f"^{message}"):
        decoded(module, max_length=2, beam_size=4, top_beams=4, finish=finish)


@every_decoding
def test_int32_is_read_as_int64_is(keywords):
    for norm_first in (False, True):
        module = model(norm_first=norm_first)
        narrow, wide = decoded(module, SOURCE.int(), **keywords), decoded(module, SOURCE, **keywords)
        assert all(torch.equal(*pair) for pair in zip(narrow, wide, strict=True))
        assert narrow.ids.dtype == torch.int64


def test_in_beam_and_no_penalty_are_the_defaults():
    module = model()
    sizes: dict[str, Any] = {"beam_size": 3, "top_beams": 3}
    expected = decoded(module, **sizes, finish="in_beam", length_penalty="none")
    got = decoded(module, **sizes)
    assert torch.equal(got.ids, expected.ids)
    assert torch.equal(got.scores, expected.scores)


def test_a_model_in_training_decodes_without_dropout_and_stays_in_training():
    module = model(dropout=0.5)
    quiet = [decoded(module), decoded(module, beam_size=3, top_beams=2)]
    module.train()
    module.encoder.eval()
    modes = [part.training for part in module.modules()]
    state = torch.get_rng_state()
    trained = [decoded(module), decoded(module, beam_size=3, top_beams=2)]

    for got, expected in zip(trained, quiet, strict=True):
        assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


@every_decoding
def test_runs_on_the_meta_device_with_the_same_shapes(keywords):
    expected = decoded(model(), **keywords)
    on_meta = decoded(model().to("meta"), SOURCE.to("meta"), **keywords)
    for got, tensor in zip(on_meta, expected, strict=True):
        assert got.is_meta
        assert (got.shape, got.dtype) == (tensor.shape, tensor.dtype)


def test_scores_of_the_functions_have_gradients():
    module = model()
    given: dict[str, Any] = {**COUNTS, **WORDS, "max_length": 5, "params": dict(module.named_parameters())}
    greedy = greedy_decode(SOURCE, **given)
    expected = torch.autograd.grad(greedy.scores.sum(), module.w_vocab, retain_graph=True)[0]
    assert expected.abs().max() > 0.1

    for finish in FINISHES:
        beam = beam_search(SOURCE, **given, beam_size=1, top_beams=1, finish=finish)
        close(torch.autograd.grad(beam.scores.sum(), module.w_vocab)[0], expected)
