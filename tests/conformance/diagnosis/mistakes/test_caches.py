"""Each mistake in attention with a cache gives what PyTorch code with it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "caches"]


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 32)


SEQ = 7
Q, K, V = draw(1, 2, 4, SEQ, 3), draw(2, 2, 2, SEQ, 3), draw(3, 2, 2, SEQ, 5)
MASK = torch.ones(2, 1, 1, SEQ, dtype=torch.bool)
MASK[1, ..., :2] = False
#: The calls: a prompt, a chunk, two steps.
CUTS = ((0, 3), (3, 5), (5, 6), (6, 7))


def attend(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def triangle(new, so_far):
    return torch.ones(new, so_far, dtype=torch.bool).tril(so_far - new)


def decode(see=triangle, values=V, keep=lambda new: new, mask=None, hold=lambda rows: rows):
    """Return the outputs of a prompt, a chunk and two steps.

    `keep` says what of the new tokens is cached, and `hold` what of those before them stays so.
    """
    rows, outputs = [], []
    for start, stop in CUTS:
        seen = [*rows, *range(start, stop)]
        visible = see(stop - start, len(seen))
        visible = visible if mask is None else visible & mask(seen, stop - start)
        value = torch.cat([values[:, :, rows], V[:, :, start:stop]], dim=2)
        outputs.append(attend(Q[:, :, start:stop], K[:, :, seen], value, visible))
        rows = [*hold(rows), *keep([*range(start, stop)])]
    return torch.cat(outputs, dim=2)


def cut_mask(seen, new):
    cut = MASK[..., seen].clone()
    cut[..., : len(seen) - new] = True
    return cut


WRITTEN = {
    "cache-causal-top-left": decode(lambda new, n: triangle(new, n) if new == 1 else torch.ones(new, n).tril() > 0),
    "cache-first-key-only": decode(lambda new, n: torch.ones(new, n).tril() > 0),
    "cache-prefill-unmasked": decode(lambda new, n: torch.ones(new, n) > 0),
    "cache-chunk-unmasked": decode(lambda new, n: triangle(new, n) if new == n else torch.ones(new, n) > 0),
    "cache-append-lost": decode(keep=lambda new: new if new[0] == 0 else []),
    "cache-last-call-only": decode(hold=lambda rows: []),
    "cache-values-lost": decode(values=torch.zeros_like(V)),
    # They show in other scripts only.
    "cache-mask-cut": decode(),
    "cache-not-reset": decode(),
    "cache-prompt-mutated": decode(),
    "cache-buffer-shared": decode(),
}


def run(adapter, cuts=CUTS, after=(0, 1, 2, 3), mask=None):
    """Return the outputs of the calls of an adapter."""
    states, outputs = [None], []
    for (start, stop), before in zip(cuts, after, strict=True):
        own = None if mask is None else mask[..., :stop].numpy()
        arrays = (x[:, :, start:stop].numpy() for x in (Q, K, V))
        called = adapter.cached_attention(*arrays, own, states[before])
        states.append(called["state"])
        outputs.append(called["output"])
    return np.concatenate(outputs, axis=2)


def test_every_mistake_of_the_catalogue_is_made(spec):
    named = {m.id for m in spec.mistakes.values() if m.component == "cached_attention"}
    assert named == {*MISTAKES} == {*WRITTEN}


def test_the_textbook_gives_causal_attention():
    expected = scaled_dot_product_attention(Q, K, V, is_causal=True, enable_gqa=True)
    np.testing.assert_allclose(run(build_textbook()), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mistake", WRITTEN)
def test_the_output_is_that_of_code_with_the_mistake(mistake):
    np.testing.assert_allclose(run(implementations()[mistake].make()), WRITTEN[mistake], rtol=0, atol=1e-13)


def test_a_mask_that_is_cut_shows_the_padding_of_earlier_calls():
    output = run(implementations()["cache-mask-cut"].make(), mask=MASK)
    expected = decode(mask=cut_mask)
    real = slice(2, None)  # padded tokens see nothing
    np.testing.assert_allclose(output[:, :, real], expected[:, :, real], rtol=0, atol=1e-13)
    right = decode(mask=lambda seen, new: MASK[..., seen])
    np.testing.assert_allclose(run(build_textbook(), mask=MASK)[:, :, real], right[:, :, real], rtol=0, atol=1e-13)
    assert not np.allclose(output[1, :, real], right[1, :, real])


def test_a_cache_that_is_not_reset_continues_the_last_sequence():
    output = run(implementations()["cache-not-reset"].make(), CUTS[:2], (0, 0))
    np.testing.assert_allclose(output, WRITTEN["cache-not-reset"][:, :, :5], rtol=0, atol=1e-13)
    own = attend(Q[:, :, 3:5], K[:, :, 3:5], V[:, :, 3:5], triangle(2, 2))
    np.testing.assert_allclose(run(build_textbook(), CUTS[:2], (0, 0))[:, :, 3:], own, rtol=0, atol=1e-13)


def test_a_state_that_is_changed_in_place_has_both_continuations():
    output = run(implementations()["cache-prompt-mutated"].make(), CUTS[:3], (0, 1, 1))
    np.testing.assert_allclose(output, WRITTEN["cache-prompt-mutated"][:, :, :6], rtol=0, atol=1e-13)
    seen = [0, 1, 2, 5]
    right = attend(Q[:, :, 5:6], K[:, :, seen], V[:, :, seen], triangle(1, 4))
    np.testing.assert_allclose(run(build_textbook(), CUTS[:3], (0, 1, 1))[:, :, 5:], right, rtol=0, atol=1e-13)


def test_a_shared_buffer_has_the_tokens_of_the_last_continuation():
    """A prompt, two continuations of it by a token, and a step of the first."""
    cuts, after = ((0, 3), (3, 4), (4, 5), (5, 6)), (0, 1, 1, 2)
    overwritten, own = [0, 1, 2, 4, 5], [0, 1, 2, 3, 5]
    for adapter, seen in ((implementations()["cache-buffer-shared"].make(), overwritten), (build_textbook(), own)):
        wanted = attend(Q[:, :, 5:6], K[:, :, seen], V[:, :, seen], triangle(1, 5))
        np.testing.assert_allclose(run(adapter, cuts, after)[:, :, 5:], wanted, rtol=0, atol=1e-13)
