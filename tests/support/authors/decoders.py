"""Greedy decoding and beam search over other authors' models: caches, batches, heaps and whole readings."""

from __future__ import annotations

import heapq

import numpy as np
import torch

from authors import from_scratch, functional, mingpt

STACKS = ("num_heads", "num_encoder_layers", "num_decoder_layers")

# Greedy


def greedy_with_a_cache(source, *, bos_id, eos_id, max_length, pad_id, **model):
    """All samples at once, word by word; what has ended reads on, and nobody listens."""
    cache = functional.Cache(source, pad_id=pad_id, **model)
    words = torch.full_like(source[:, 0], bos_id)
    going = torch.ones_like(words, dtype=torch.bool)
    ids, scores = [], []
    for _ in range(max_length):
        best = torch.log_softmax(cache.step(words), dim=-1).max(dim=-1)
        ids.append(torch.where(going, best.indices, pad_id))
        scores.append(torch.where(going, best.values, 0))
        words, going = best.indices, going & (best.indices != eos_id)
        if not going.any():
            break
    missing = (0, max_length - len(ids))
    token_scores = torch.nn.functional.pad(torch.stack(scores, dim=1), missing)
    padded = torch.nn.functional.pad(torch.stack(ids, dim=1), missing, value=pad_id)
    return padded, token_scores.sum(dim=1), token_scores


def greedy_whole_readings(source, *, bos_id, eos_id, max_length, pad_id, params, **stacks):
    """As nanoGPT generates, one sentence at a time: the whole beginning again for every word."""
    ids = source.new_full((len(source), max_length), pad_id)
    for row, sentence in zip(ids, source, strict=True):
        read = source.new_tensor([[bos_id]])
        for place in range(max_length):
            logits = mingpt.transformer(sentence[None], read, pad_id=pad_id, params=params, **stacks)[0][:, -1, :]
            word = logits.argmax(dim=-1, keepdim=True)
            row[place] = word
            if word.item() == eos_id:
                break
            read = torch.cat((read, word), dim=1)
    return ids


def greedy_read_again_at_the_end(source, *, bos_id, eos_id, max_length, pad_id, **model):
    """The words first, whatever follows the end; the scores from one reading of the finished sentences."""
    read = source.new_full((len(source), 1), bos_id)
    for _ in range(max_length):
        logits = functional.transformer(source, read, pad_id=pad_id, **model)["logits"]
        read = torch.cat([read, logits[:, -1:].argmax(-1)], dim=1)
    ids = read[:, 1:]
    logits = functional.transformer(source, read[:, :-1], pad_id=pad_id, **model)["logits"]
    scores = -torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    after = torch.cumsum(ids == eos_id, dim=1) - (ids == eos_id).long() > 0
    scores = scores.masked_fill(after, 0)
    return {"ids": ids.masked_fill(after, pad_id), "token_scores": scores, "scores": scores.sum(-1)}


def numpy_log_softmax(logits):
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def greedy_in_numpy(source, *, bos_id, eos_id, max_length, pad_id, params, **stacks):
    """Lists of Python numbers; sums in float64."""
    ids, terms = [], []
    for sentence in source:
        words, logs = [bos_id], []
        while len(logs) < max_length and (len(words) == 1 or words[-1] != eos_id):
            logits, *_ = from_scratch.transformer(
                sentence[None], np.array([words]), pad_id=pad_id, params=params, **stacks
            )
            row = numpy_log_softmax(logits[0, -1])
            words.append(int(row.argmax()))
            logs.append(row[words[-1]])
        rest = max_length - len(logs)
        ids.append(words[1:] + [pad_id] * rest)
        terms.append(logs + [0.0] * rest)
    made = np.array(terms)
    dtype = params["table"].dtype
    return np.array(ids), made.sum(-1).astype(dtype), made.astype(dtype)


# Beam search, in_beam


def beam_in_one_batch(source, *, bos_id, eos_id, max_length, beam_size, top_beams, pad_id, **model):
    """Batch × beam rows with a cache, topk over beam × vocab; what has ended goes on with padding for nothing."""
    batch, device = len(source), source.device
    cache = functional.Cache(source.repeat_interleave(beam_size, dim=0), pad_id=pad_id, **model)
    words = torch.full((batch * beam_size,), bos_id, device=device)
    first = torch.arange(batch, device=device)[:, None] * beam_size
    ids = torch.full((batch, beam_size, 0), pad_id, device=device)
    ended = torch.zeros(batch, beam_size, dtype=torch.bool, device=device)
    totals = None
    for _ in range(max_length):
        terms = torch.log_softmax(cache.step(words), dim=-1)
        vocab = terms.shape[1]
        if totals is None:
            totals = terms.new_full((batch, beam_size), -torch.inf)
            totals[:, 0] = 0.0
        stays = terms.new_full((vocab,), -torch.inf)
        stays[0] = 0.0
        terms = torch.where(ended[..., None], stays, terms.view(batch, beam_size, vocab))
        totals, places = (totals[..., None] + terms).flatten(1).topk(beam_size, dim=1)
        parents = places // vocab
        ended = ended.gather(1, parents)
        word = torch.where(ended, pad_id, places % vocab)
        ids = torch.cat([ids.gather(1, parents[..., None].expand(-1, -1, ids.shape[2])), word[..., None]], dim=2)
        ended = ended | (word == eos_id)
        cache.choose((first + parents).flatten())
        # Padding may lie beyond the table, and nobody looks at what follows it.
        words = torch.where(ended, bos_id, word).flatten()
        if ended.all():
            break
    ids = torch.nn.functional.pad(ids, (0, max_length - ids.shape[2]), value=pad_id)
    return ids[:, :top_beams], totals[:, :top_beams]


def beam_on_a_heap(source, *, bos_id, eos_id, max_length, beam_size, top_beams, pad_id, params, **stacks):
    """One sample at a time, totals in float64; stops as soon as the sentences to return can no longer change.

    Totals only fall: once the first top_beams have ended, no extension of another sentence comes before them.
    """
    ids = source.new_full((len(source), top_beams, max_length), pad_id)
    scores = params["table"].new_zeros(len(source), top_beams)
    for sample, sentence in enumerate(source):
        beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for _ in range(max_length):
            heap = [(-total, words) for total, words in beam if words and words[-1] == eos_id]
            going = [(total, words) for total, words in beam if not words or words[-1] != eos_id]
            if going:
                read = source.new_tensor([[bos_id, *words] for _, words in going])
                sources = sentence.expand(len(going), -1)
                logits, *_ = mingpt.transformer(sources, read, pad_id=pad_id, params=params, **stacks)
                for (total, words), terms in zip(going, logits[:, -1].double().log_softmax(-1).tolist(), strict=True):
                    heap += [(-(total + term), (*words, word)) for word, term in enumerate(terms)]
            heapq.heapify(heap)
            beam = [(-cost, words) for cost, words in heapq.nsmallest(beam_size, heap)]
            if all(words[-1] == eos_id for _, words in beam[:top_beams]) and len(beam) >= top_beams:
                break
        for place, (total, words) in enumerate(beam[:top_beams]):
            ids[sample, place, : len(words)] = source.new_tensor(words)
            scores[sample, place] = total
    return ids, scores


def beam_of_tensors_sorted(source, *, bos_id, eos_id, max_length, beam_size, top_beams, pad_id, **model):
    """One sample at a time: a matrix of beginnings, read anew at every step, and a sort of all extensions."""
    found = []
    for sentence in source:
        live, totals, done = source.new_full((1, 1), bos_id), None, []
        for step in range(max_length):
            logits = functional.transformer(sentence[None].expand(len(live), -1), live, pad_id=pad_id, **model)[
                "logits"
            ]
            terms = logits[:, -1].log_softmax(-1)
            extended = terms if totals is None else totals[:, None] + terms
            # Tuples of total, whether it goes on, and the words.
            pool = [(t, False, words) for t, words in done]
            pool += [
                (extended[i, w], w != eos_id, torch.cat([live[i, 1:], source.new_tensor([w])]))
                for i in range(len(live))
                for w in range(terms.shape[1])
            ]
            pool = sorted(pool, key=lambda entry: entry[0].item(), reverse=True)[:beam_size]
            done = [(t, words) for t, goes_on, words in pool if not goes_on]
            going = [(t, words) for t, goes_on, words in pool if goes_on]
            if not going or step == max_length - 1:
                break
            live = torch.stack([torch.cat([source.new_tensor([bos_id]), words]) for _, words in going])
            totals = torch.stack([t for t, _ in going])
        found.append(pool[:top_beams])
    ids = source.new_tensor([[[*w.tolist(), *[pad_id] * (max_length - len(w))] for _, _, w in best] for best in found])
    return {"ids": ids, "scores": torch.stack([torch.stack([t for t, _, _ in best]) for best in found])}


# Beam search, set_aside


def beam_with_finished_list(penalty):
    """As OpenNMT has it: what ends among the best is set aside, and the beam is filled up with what goes on."""

    def beam_search(source, *, bos_id, eos_id, max_length, beam_size, top_beams, pad_id, params, **stacks):
        ids = source.new_full((len(source), top_beams, max_length), pad_id)
        scores = params["table"].new_zeros(len(source), top_beams)
        for sample, sentence in enumerate(source):
            cache = functional.Cache(sentence[None], pad_id=pad_id, params=params, **stacks)
            words, live, finished = source.new_tensor([bos_id]), [[]], []
            totals = source.new_zeros(1, dtype=torch.float64)
            for length in range(1, max_length + 1):
                pool = (totals[:, None] + cache.step(words).double().log_softmax(-1)).flatten()
                vocab = len(pool) // len(live)
                order = pool.argsort(descending=True, stable=True).tolist()
                ended = [place for place in order[:beam_size] if place % vocab == eos_id]
                finished += [(pool[p].item() / penalty(length), [*live[p // vocab], eos_id]) for p in ended]
                if len(finished) >= beam_size:
                    break
                places = [place for place in order if place % vocab != eos_id][:beam_size]
                parents = source.new_tensor([place // vocab for place in places])
                words = source.new_tensor([place % vocab for place in places])
                live = [[*live[i], w] for i, w in zip(parents.tolist(), words.tolist(), strict=True)]
                totals = pool[places]
                cache.choose(parents)
            else:
                finished += [(t / penalty(max_length), w) for t, w in zip(totals.tolist(), live, strict=True)]
            for place, (score, sentence_words) in enumerate(sorted(finished, key=lambda f: -f[0])[:top_beams]):
                ids[sample, place, : len(sentence_words)] = source.new_tensor(sentence_words)
                scores[sample, place] = score
        return ids, scores

    return beam_search
