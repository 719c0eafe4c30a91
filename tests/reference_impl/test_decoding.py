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


def chain(probabilities: list[list[float]]) -> Transformer:
    """A model whose next word has the probabilities in the row of the word before it, to 1e-6 or so."""
    vocab = len(probabilities)
    module = Transformer(vocab, vocab, 1, 1, 1, 1, pad_id=0, bias=True).double().eval()
    scores = torch.tensor(probabilities, dtype=torch.float64).log()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            # The sub-layers add nothing, so the decoder normalises the embedding and does no more.
            if name.rpartition(".")[2] in ("w_o", "w_2"):
                parameter.zero_()
        # Beside a million the position does not count: normalised, a row is 1 − 1/vocab at its word, −1/vocab
        # elsewhere, divided by its deviation.
        module.table.copy_(1e6 * torch.eye(vocab))
        deviation = math.sqrt((vocab - 1) / vocab**2)
        module.w_vocab.copy_(scores * deviation)
        module.b_vocab.copy_(scores.mean(dim=0))
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


def all_sentences(speak: Speaker, max_length: int) -> list[Sentence]:
    """Every sentence there is: those that end, and those of max_length words that do not."""
    ended, open_ones = [], [Sentence()]
    for _ in range(max_length):
        longer = [extension for sentence in open_ones for extension in extended(sentence, speak)]
        ended += [sentence for sentence in longer if sentence.ended]
        open_ones = [sentence for sentence in longer if not sentence.ended]
    return ended + open_ones


def test_greedy_takes_the_likeliest_word_of_the_whole_model_at_every_step():
    lengths = set()
    for seed, norm_first in itertools.product(range(4), (False, True)):
        module = model(seed, norm_first=norm_first)
        result = decoded(module, SOURCE, bos_id=BOS, eos_id=EOS, max_length=8)
        assert result.ids.shape == result.token_scores.shape == (BATCH, 8)
        for b in range(BATCH):
            speak, scores = speaker(module, SOURCE[b], norm_first), []
            words: tuple[int, ...] = ()
            while len(words) < 8 and words[-1:] != (EOS,):
                said = speak(words)
                words = (*words, max(range(VOCAB), key=lambda word: said[word]))
                scores.append(said[words[-1]])
            lengths.add(len(words))
            rest = 8 - len(words)
            assert result.ids[b].tolist() == [*words] + [PAD] * rest
            close(result.token_scores[b], scores + [0.0] * rest)
            close(result.scores[b : b + 1], [sum(scores)])
    # Some end at once, some on the way, some never.
    assert {1, 8} < lengths
    assert len(lengths) > 4


def test_the_score_is_the_sum_of_the_log_probabilities_under_teacher_forcing():
    module = model()
    result = decoded(module, SOURCE, bos_id=BOS, eos_id=EOS, max_length=8)
    # The whole sentence at once, and the rows behind its end left out.
    target = torch.cat((torch.full((BATCH, 1), BOS), result.ids[:, :-1]), dim=1)
    log_probs = module(SOURCE, target).logits.log_softmax(dim=-1).gather(-1, result.ids[..., None])[..., 0]
    behind = (result.ids == EOS).cumsum(dim=1) - (result.ids == EOS).long() > 0

    assert behind.any()
    close(result.token_scores, log_probs.masked_fill(behind, 0.0))
    close(result.scores, result.token_scores.sum(dim=1))


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


def test_the_rules_find_different_sentences():
    results = {}
    for finish, length_penalty in RULES:
        rules: dict[str, Any] = {"finish": finish, "length_penalty": length_penalty}
        ids = [decoded(model(seed), beam_size=3, top_beams=3, **rules).ids for seed in SEEDS]
        results[finish, length_penalty] = torch.stack(ids)
    for one, other in itertools.combinations(results.values(), 2):
        assert not torch.equal(one, other)


@every_rule
def test_a_beam_for_every_sentence_finds_the_best_of_all(finish, length_penalty):
    # 4 words, one of them eos_id: 1 + 3 + 9 sentences of three words at most end, and 27 do not.
    module = model(vocab=4)
    source = SOURCE[:2].clamp(max=3)
    result = decoded(
        module, source, bos_id=BOS, eos_id=EOS, max_length=3, beam_size=40, top_beams=40,
        finish=finish, length_penalty=length_penalty,
    )  # fmt: skip
    for b in range(2):
        everything = all_sentences(speaker(module, source[b]), 3)
        assert len(everything) == 40
        everything.sort(key=lambda sentence: -sentence.score(length_penalty))
        assert result.ids[b].tolist() == [sentence.padded(3) for sentence in everything]
        close(result.scores[b], [sentence.score(length_penalty) for sentence in everything])


# Words 0 and 1, eos_id 3, bos_id 2, which is never written. The words of the second row follow word 1.
ENDS = [[0.09, 0.01, 1e-9, 0.9], [0.25, 0.25, 1e-9, 0.5], [0.29, 0.31, 1e-9, 0.4], [0.25, 0.25, 0.25, 0.25]]


@pytest.mark.parametrize(
    ("finish", "length_penalty", "words", "scores"),
    [
        # Step 1 keeps eos_id (0.4) and 1 (0.31). Step 2 keeps both ended: 1 eos_id has 0.31 · 0.5.
        ("in_beam", "none", [[3], [1, 3]], [math.log(0.4), math.log(0.155)]),
        ("in_beam", "mean", [[3], [1, 3]], [math.log(0.4), math.log(0.155) / 2]),
        ("in_beam", "gnmt", [[3], [1, 3]], [math.log(0.4), math.log(0.155) / (7 / 6) ** 0.6]),
        # eos_id leaves room for 0 (0.29), and in step 2 two more are set aside: 0 eos_id has 0.29 · 0.9.
        ("set_aside", "none", [[3], [0, 3]], [math.log(0.4), math.log(0.261)]),
        ("set_aside", "mean", [[0, 3], [3]], [math.log(0.261) / 2, math.log(0.4)]),
        ("set_aside", "gnmt", [[3], [0, 3]], [math.log(0.4), math.log(0.261) / (7 / 6) ** 0.6]),
    ],
)
def test_a_search_done_by_hand(finish, length_penalty, words, scores):
    result = decoded(
        chain(ENDS), torch.tensor([[1, 2]]), bos_id=2, eos_id=3, max_length=4, beam_size=2, top_beams=2,
        finish=finish, length_penalty=length_penalty,
    )  # fmt: skip

    assert result.ids[0].tolist() == [sentence + [0] * (4 - len(sentence)) for sentence in words]
    close(result.scores[0], scores, atol=1e-4)


def test_greedy_misses_what_two_beams_find():
    # 0.29 · 0.9 is more than 0.31 · 0.5, here where eos_id is no first word.
    module = chain([*ENDS[:2], [0.45, 0.55, 1e-9, 1e-9], ENDS[3]])
    words: dict[str, Any] = {"bos_id": 2, "eos_id": 3, "max_length": 2}
    greedy = decoded(module, torch.tensor([[1, 2]]), **words)
    beam = decoded(module, torch.tensor([[1, 2]]), **words, beam_size=2, top_beams=1)

    assert greedy.ids.tolist() == [[1, 3]]
    assert beam.ids.tolist() == [[[0, 3]]]
    close(greedy.scores, [math.log(0.275)], atol=1e-4)
    close(greedy.token_scores, [[math.log(0.55), math.log(0.5)]], atol=1e-4)
    close(beam.scores, [[math.log(0.405)]], atol=1e-4)


@pytest.mark.sample(6)
@every_rule
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_one_beam_is_greedy_decoding(finish, length_penalty, dtype):
    for seed in range(4):
        module = model(seed, dtype=dtype)
        greedy = decoded(module, max_length=12)
        beam = decoded(module, max_length=12, beam_size=1, top_beams=1, finish=finish, length_penalty=length_penalty)
        assert torch.equal(beam.ids[:, 0], greedy.ids)
        assert beam.scores.dtype == greedy.scores.dtype == greedy.token_scores.dtype == dtype
        if length_penalty == "none":
            torch.testing.assert_close(beam.scores[:, 0], greedy.scores)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_log_probabilities_are_not_rounded_to_a_half_type_before_they_are_compared(dtype):
    # The logits of 5 and 6 are neighbours near 1/16; near −1.9 their log-probabilities would be rounded to one.
    module = steered({5: 1 / 16, 6: 1 / 16 * (1 + torch.finfo(dtype).eps)}, dtype=dtype)
    for finish in FINISHES:
        assert decoded(module).ids.tolist() == [[6] * 5] * BATCH
        assert decoded(module, beam_size=1, top_beams=1, finish=finish).ids.tolist() == [[[6] * 5]] * BATCH


def test_what_follows_the_end_is_padding_and_adds_nothing():
    module = steered({EOS: 2.0})
    greedy = decoded(module)
    assert greedy.ids.tolist() == [[EOS] + [PAD] * 4] * BATCH
    close(greedy.scores, [2 - math.log(6 + math.exp(2))] * BATCH)
    assert (greedy.token_scores[:, 0] == greedy.scores).all()
    assert (greedy.token_scores[:, 1:] == 0).all()

    beam = decoded(module, beam_size=1, top_beams=1)
    assert beam.ids[:, 0].tolist() == greedy.ids.tolist()
    assert torch.equal(beam.scores[:, 0], greedy.scores)


def test_without_an_end_there_are_max_length_words():
    module = steered({5: 2.0, EOS: -9.0})
    for max_length in (1, 2, 7):
        greedy = decoded(module, max_length=max_length)
        assert greedy.ids.tolist() == [[5] * max_length] * BATCH
        close(greedy.scores, [max_length * (2 - math.log(5 + math.exp(2) + math.exp(-9)))] * BATCH)
        for finish in FINISHES:
            beam = decoded(module, max_length=max_length, beam_size=3, top_beams=1, finish=finish)
            assert beam.ids[:, 0].tolist() == greedy.ids.tolist()
            close(beam.scores[:, 0], greedy.scores)


@every_decoding
def test_samples_end_each_for_itself(keywords):
    different = 0
    for seed in SEEDS:
        module = model(seed)
        together = decoded(module, **keywords)
        for b in range(BATCH):
            source = SOURCE[b : b + 1]
            alone = decoded(module, source[:, source[0] != PAD], **keywords)
            assert torch.equal(alone.ids[0], together.ids[b])
            close(alone.scores[0], together.scores[b])
        different += len({str((ids == EOS).nonzero()) for ids in together.ids})
    # Some go through steps that only others need.
    assert different > len(SEEDS)


def test_among_equals_the_lowest_id_and_the_better_sentence_come_first():
    # More words than a sort that is not stable would leave in order by chance; the last one ends.
    module = steered({100: -1.0}, vocab=101)
    greedy = decoded(module, eos_id=100, max_length=3)
    beam = decoded(module, eos_id=100, max_length=3, beam_size=4, top_beams=4)
    assert greedy.ids.tolist() == [[0, 0, 0]] * BATCH
    assert beam.ids.tolist() == [[[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3]]] * BATCH

    # 7 and 9 are equal and better than the rest: 7 7 comes before 7 9 before 9 7.
    beam = decoded(steered({7: 1.0, 9: 1.0, 100: -1.0}, vocab=101), eos_id=100, max_length=2, beam_size=3, top_beams=3)
    assert beam.ids.tolist() == [[[7, 7], [7, 9], [9, 7]]] * BATCH


def test_an_ended_sentence_keeps_its_place_among_equals():
    # With the penalty "mean" a sentence of equal words has one score at all lengths: 5 ended does not give way.
    module = steered({5: 1.0, 6: 1.0})
    beam = decoded(module, eos_id=5, max_length=3, beam_size=2, top_beams=2, length_penalty="mean")
    assert beam.ids.tolist() == [[[5, PAD, PAD], [6, 5, PAD]]] * BATCH


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
def test_float32_finds_the_sentences_of_float64(keywords):
    wide, narrow = decoded(model(), **keywords), decoded(model(dtype=torch.float32), **keywords)
    assert torch.equal(narrow.ids, wide.ids)
    assert narrow.scores.dtype == torch.float32
    close(narrow.scores, wide.scores, atol=1e-4)


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
