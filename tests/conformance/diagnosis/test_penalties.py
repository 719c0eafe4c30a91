"""Beam search with a wrong length penalty: its words fail by themselves, and its place is the score of a sentence."""

from __future__ import annotations

import heapq
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import reference_functions
from goldformer.adapters import Adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, PLACE
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.isolation.sentences import SCORE
from goldformer.conformance.judging.cases import Bench, judge_case

#: Right penalties, and wrong ones of no catalogue.
RIGHT = {"mean": lambda n: n, "gnmt": lambda n: ((5 + n) / 6) ** 0.6}
#: The cases in which the words depend on the penalty.
CHOOSING = "beam-penalties-choose"


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def read_next(source, words, bos_id, params, model):
    """Return log p of the next word after each row of words, in float64."""
    target = torch.tensor([[bos_id, *row] for row in words])
    sources = source.expand(len(words), -1)
    logits = reference_functions.transformer(sources, target, params=params, **model).logits
    return log_softmax(logits[:, -1].double().numpy())


def search_in_heaps(penalty, prune):
    """Return a search of one sample after the other, over a heap of tuples."""

    def search(source, *, bos_id, eos_id, max_length, beam_size, top_beams, params, **model):
        def key(item):
            return item[0] / penalty(len(item[1])) if prune else item[0]

        result = []
        for sample in source:
            beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
            for _ in range(max_length):
                done = [item for item in beam if item[1][-1:] == (eos_id,)]
                going = [item for item in beam if item[1][-1:] != (eos_id,)]
                if not going:
                    break
                rows = read_next(sample[None], [words for _, words in going], bos_id, params, model)
                grown = [
                    (total + float(term), (*words, word))
                    for (total, words), row in zip(going, rows, strict=True)
                    for word, term in enumerate(row)
                ]
                beam = heapq.nlargest(beam_size, done + grown, key=key)
            result.append(sorted(beam, key=lambda item: -item[0] / penalty(len(item[1])))[:top_beams])
        return result

    return search


def search_in_arrays(penalty, prune):
    """Return a search whose beams are rows of an array of words, with sums and lengths in arrays of their own."""

    def search(source, *, bos_id, eos_id, max_length, beam_size, top_beams, params, **model):
        result = []
        for sample in source:
            words = np.zeros((1, 0), dtype=np.int64)
            sums, lengths = np.zeros(1), np.zeros(1, dtype=np.int64)
            for step in range(max_length):
                ended = (words == eos_id).any(-1)
                if ended.all():
                    break
                table = np.full((len(words), params["table"].shape[0]), -np.inf)
                table[ended, 0] = sums[ended]
                rows = read_next(sample[None], words[~ended].tolist(), bos_id, params, model)
                table[~ended] = sums[~ended, None] + rows
                counts = np.where(ended, lengths, step + 1)
                scores = table / np.array([penalty(n) for n in counts])[:, None] if prune else table
                order = np.argsort(-scores.ravel(), kind="stable")[:beam_size]
                parents, chosen = np.divmod(order, table.shape[1])
                words = np.concatenate([words[parents], chosen[:, None]], axis=1)
                sums, lengths = table.ravel()[order], counts[parents]
            ranked = np.argsort([-s / penalty(n) for s, n in zip(sums, lengths, strict=True)], kind="stable")
            result.append([(float(sums[i]), tuple(words[i, : lengths[i]].tolist())) for i in ranked[:top_beams]])
        return result

    return search


def make_bench(spec, search, declared, penalty, *, prune=True, scores=True):
    run = search(penalty, prune)

    def beam_search(source, *, max_length, **rest):
        found = run(source, max_length=max_length, **rest)
        fill = rest["pad_id"]
        ids = torch.tensor([[[*w, *[fill] * (max_length - len(w))] for _, w in beam] for beam in found])
        divided = torch.tensor([[total / penalty(len(w)) for total, w in beam] for beam in found])
        return (ids, divided.to(rest["params"]["table"].dtype)) if scores else ids

    code = SimpleNamespace(ARRAYS="torch", CONVENTIONS={"length_penalty": declared}, beam_search=beam_search)
    return Bench(spec, Adapter.from_object(code, "mine.py", spec), "float32", "cpu")


def judge(spec, bench):
    names = ("beam-length-penalty", "beam-length-penalty-two-lengths")
    cases = [c for c in spec.cases_of("beam_search") if c.id.startswith(CHOOSING) or c.id in names]
    return [judge_case(case, bench) for case in cases]


def find(spec, bench):
    return list(diagnose(Diagnosis(spec).explain_all(judge(spec, bench)), spec))


styles = pytest.mark.parametrize("search", [search_in_heaps, search_in_arrays], ids=["heaps", "arrays"])


@styles
@pytest.mark.parametrize("declared", RIGHT)
def test_a_right_penalty_conforms(search, declared, spec):
    verdicts = [judged.verdict for judged in judge(spec, make_bench(spec, search, declared, RIGHT[declared]))]
    assert not [v.check for v in verdicts if v.bad]
    assert sum(v.is_judged for v in verdicts) > 4


WRONG = {
    "mean of one more": ("mean", lambda n: n + 1),
    "mean to 0.8": ("mean", lambda n: n**0.8),
    "gnmt to 0.8": ("gnmt", lambda n: ((5 + n) / 6) ** 0.8),
    "gnmt without 5": ("gnmt", lambda n: n**0.6),
    "none": ("mean", lambda _: 1.0),
}


@styles
@pytest.mark.parametrize("wrong", WRONG)
def test_the_words_alone_show_a_wrong_penalty(search, wrong, spec):
    bench = make_bench(spec, search, *WRONG[wrong], scores=False)
    verdicts = [judged.verdict for judged in judge(spec, bench)]
    assert sum(v.bad for v in verdicts if v.check.startswith(CHOOSING)) >= 2


# Both styles return the same sentences and get the same diagnosis, which takes seconds: one for each option is enough.
@pytest.mark.sample(1)
@pytest.mark.parametrize(("search", "declared"), [(search_in_heaps, "mean"), (search_in_arrays, "gnmt")])
def test_a_beam_that_keeps_sums_is_named(search, declared, spec):
    found = find(spec, make_bench(spec, search, declared, RIGHT[declared], prune=False))
    assert [(f.label, f.mistakes) for f in found if f.mistakes] == [(MISTAKE_FOUND, ("beam_search.kept-by-sums",))]


def test_the_place_of_an_unknown_penalty_is_the_score_of_a_sentence(spec):
    found = find(spec, make_bench(spec, search_in_heaps, "mean", lambda n: 3.7 + math.sin(3.0 * n)))
    assert not [f.mistakes for f in found if f.mistakes]
    assert [f.text for f in found if f.label == PLACE][:1] == [SCORE]
