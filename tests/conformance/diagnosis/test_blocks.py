"""Code that goes through an axis block by block: it is caught, what it depends on is said, and it is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldformer.adapters import Adapter
from goldformer.conformance.diagnosis.candidates import Candidate
from goldformer.conformance.diagnosis.catalogue import Catalogue
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import DEPENDS_ON_SIZE, MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.neighbours import neighbours
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec import Spec

ATTENTION = "scaled_dot_product_attention"


def attend_in_blocks(length, *, rescales=True, to_end=True, offset=True, only_whole=False, divides_by_zero=False):
    """Return attention with a running maximum and sum; each flag has its other value for a slip."""

    def attention(query, key, value, mask=None):
        keys = key.shape[-2]
        shape = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        seen = np.broadcast_to(np.True_ if mask is None else mask, (*shape, query.shape[-2], keys))
        top = np.full((*shape, query.shape[-2], 1), -np.inf, dtype=query.dtype)
        total, output = np.zeros_like(top), np.zeros((*top.shape[:-1], value.shape[-1]), dtype=query.dtype)
        for start in range(0, keys, length):
            if (only_whole or (not to_end and start)) and start + length > keys:
                break
            block = slice(start, start + length)
            scores = query @ key[..., block, :].swapaxes(-1, -2) / np.sqrt(query.dtype.type(query.shape[-1]))
            part = seen[..., block] if offset else seen[..., : scores.shape[-1]]
            scores = np.where(part, scores, -np.inf)
            new = np.maximum(top, scores.max(-1, keepdims=True))
            safe = np.where(np.isneginf(new), 0, new)
            keep = np.exp(top - safe) if rescales else np.where(np.isneginf(top), 0, np.ones_like(top))
            powers = np.exp(scores - safe)
            total = total * keep + powers.sum(-1, keepdims=True)
            output = output * keep + powers @ value[..., block, :]
            top = new
        with np.errstate(invalid="ignore"):
            return output / (total if divides_by_zero else np.where(total == 0, 1, total))

    return attention


def judge(spec: Spec, function, component=ATTENTION, arrays="numpy"):
    declared = {"empty_row": "zeros"} if component == ATTENTION else {}
    thing = type("Blocks", (), {"ARRAYS": arrays, "CONVENTIONS": declared, component: staticmethod(function)})
    bench = Bench(spec, Adapter.from_object(thing(), "blocks", spec), "float32", "cpu")
    # Dropout is no part of it.
    cases = [case for case in spec.cases_of(component) if case.error is None and "dropout" not in case.id]
    cases = [case for case in cases if case.cotangent is None]
    return Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases)


@pytest.mark.parametrize("length", [16, 64])
def test_right_code_in_blocks_conforms(length, spec: Spec):
    assert not [v.check for v in judge(spec, attend_in_blocks(length)) if v.bad]


@pytest.mark.parametrize(
    ("slip", "length", "named"),
    [
        ("rescales", 16, "softmax.blocks.not-rescaled-16"),
        ("rescales", 64, "softmax.blocks.not-rescaled-64"),
        ("to_end", 16, "softmax.blocks.end-16"),
        ("offset", 16, f"{ATTENTION}.blocks.first-mask-16"),
        ("offset", 64, f"{ATTENTION}.blocks.first-mask-64"),
    ],
)
def test_a_slip_is_named_with_the_length_of_the_block(slip, length, named, spec: Spec):
    verdicts = judge(spec, attend_in_blocks(length, **{slip: False}))
    findings = list(diagnose(verdicts, spec))
    (found,) = [finding for finding in findings if finding.mistakes]
    assert (found.label, found.mistakes) == (MISTAKE_FOUND, (named,))


@pytest.mark.parametrize("length", [32, 128])
@pytest.mark.parametrize(("divides_by_zero", "named"), [(False, "end-or-zeros"), (True, "end-or-nan")])
def test_a_last_block_that_is_left_out_in_short_calls_too_is_named(divides_by_zero, named, length, spec: Spec):
    verdicts = judge(spec, attend_in_blocks(length, only_whole=True, divides_by_zero=divides_by_zero))
    findings = list(diagnose(verdicts, spec))
    (found,) = [finding for finding in findings if finding.mistakes]
    assert (found.label, found.mistakes) == (MISTAKE_FOUND, (f"softmax.blocks.{named}-{length}",))
    assert len([v for v in verdicts if v.bad]) > 60


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [0.0, np.nan])
def test_one_number_in_every_call_is_no_block_that_is_left_out(number, spec: Spec):
    def attention(query, key, value, mask=None):
        return np.full((*query.shape[:-1], value.shape[-1]), number, query.dtype)

    findings = diagnose(judge(spec, attention), spec)
    assert not [found for found in findings if any(".blocks." in id_ for id_ in found.mistakes)]


def attend_in_parts(length):
    """Return attention on torch that splits the keys and averages what each part gives."""

    def attention(query, key, value, mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        parts = zip(scores.split(length, -1), value.split(length, -2), strict=True)
        return torch.stack([part.softmax(-1).nan_to_num(0) @ v for part, v in parts]).mean(0)

    return attention


def attend_in_loop(length):
    """Return attention in NumPy that adds up the shares of the parts."""

    def attention(query, key, value, mask=None):
        total, starts = np.zeros(1), range(0, key.shape[-2], length)
        for start in starts:
            scores = (
                query @ key[..., start : start + length, :].swapaxes(-1, -2) / query.dtype.type(query.shape[-1]) ** 0.5
            )
            if mask is not None:
                seen = np.broadcast_to(mask, (*mask.shape[:-1], key.shape[-2]))[..., start : start + length]
                scores = np.where(seen, scores, -np.inf)
            top = scores.max(-1, keepdims=True)
            powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
            sums = powers.sum(-1, keepdims=True)
            total = total + powers / np.where(sums == 0, 1, sums) @ value[..., start : start + length, :] / len(starts)
        return total.astype(query.dtype)

    return attention


def lose_in_blocks(length):
    """Return a loss on torch that looks the target up in the first block of words."""

    def cross_entropy(logits, targets, *, pad_id):
        scores = logits.log_softmax(-1)
        losses = -scores.gather(-1, (targets % length)[..., None])[..., 0]
        counts = targets != pad_id
        return (losses * counts).sum() / counts.sum()

    return cross_entropy


def lose_in_numpy(length):
    """Return the same in NumPy, of one block after another."""

    def cross_entropy(logits, targets, *, pad_id):
        top = logits.max(-1)
        blocks = [logits[..., start : start + length] for start in range(0, logits.shape[-1], length)]
        total = sum(np.exp(block - top[..., None]).sum(-1) for block in blocks)
        own = np.take_along_axis(blocks[0], targets[..., None] % length, -1)[..., 0]
        counts = targets != pad_id
        return ((np.log(total) + top - own) * counts).sum() / counts.sum().astype(logits.dtype)

    return cross_entropy


@pytest.mark.parametrize(
    ("make", "component", "arrays", "named"),
    [
        (attend_in_parts, ATTENTION, "torch", "softmax.blocks.averaged"),
        (attend_in_loop, ATTENTION, "numpy", "softmax.blocks.averaged"),
        (lose_in_blocks, "cross_entropy", "torch", "cross_entropy.blocks.target"),
        (lose_in_numpy, "cross_entropy", "numpy", "cross_entropy.blocks.target"),
    ],
)
def test_parts_that_are_joined_wrongly_are_named(make, component, arrays, named, spec: Spec):
    verdicts = judge(spec, make(32), component, arrays)
    (found,) = [finding for finding in diagnose(verdicts, spec) if finding.mistakes]
    assert (found.label, found.mistakes) == (MISTAKE_FOUND, (f"{named}-32",))


def test_the_size_on_which_it_depends_is_said_before_the_mistake(spec: Spec):
    findings = list(diagnose(judge(spec, attend_in_blocks(16, rescales=False)), spec))
    labels = [finding.label for finding in findings]
    place = labels.index(DEPENDS_ON_SIZE)
    assert place < labels.index(MISTAKE_FOUND)
    assert "cases of up to 17 keys, wrong in 10 of 11 from 31 keys on" in findings[place].text


def test_what_fails_in_small_calls_does_not_depend_on_size(spec: Spec):
    def unscaled(query, key, value, mask=None):
        return attend_in_blocks(16)(query * np.sqrt(query.dtype.type(query.shape[-1])), key, value, mask)

    assert DEPENDS_ON_SIZE not in [finding.label for finding in diagnose(judge(spec, unscaled), spec)]


def test_each_shows_in_a_case_of_large_size(spec: Spec):
    blocks = [neighbour for neighbour in neighbours().values() if neighbour.in_blocks]
    assert len(blocks) > 50
    idle = []
    for neighbour in blocks:
        bench = Bench(spec, Adapter.from_object(neighbour.made.make(), "slip", spec), "float32", "cpu")
        large = (case for case in spec.cases_of(neighbour.component) if case.is_computed)
        idle += [] if any(judge_case(case, bench).verdict.bad for case in large) else [neighbour.id]
    assert idle == []


def test_a_projection_that_is_read_as_three_blocks_is_none_of_them(spec: Spec):
    catalogue = Catalogue(spec)
    layout = Candidate(("fused_multi_head_attention.blocks",))
    assert layout in catalogue.select_neighbours("fused_multi_head_attention")
    assert layout not in catalogue.select_blocks("fused_multi_head_attention")
