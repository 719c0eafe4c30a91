"""A class that made mistakes: the attention assignment's own solution with one line done otherwise, by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from goldformer.conformance import grading

SOLUTION: Final = (Path(grading.__file__).parent / "assignments" / "attention" / "solution.py").read_text("utf-8")

_SCALED = "scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])"
_MASKED = "scores = scores.masked_fill(~mask, -math.inf)"
_ATTEND = "heads, weights = scaled_dot_product_attention(q, k, v, mask)"
_PROJECT = "q, k, v = self.split(self.w_q(query)), self.split(self.w_k(key)), self.split(self.w_v(value))"
_MERGE = "return self.w_o(heads.transpose(1, 2).flatten(2)), weights"
_SPLIT = "return x.view(batch, seq, self.num_heads, self.d_model // self.num_heads).transpose(1, 2)"

#: What is written instead of what, by the id of the mistake.
MISTAKES: Final[dict[str, tuple[str, str]]] = {
    "softmax-unstable": ("scores - scores.max(dim=-1, keepdim=True).values", "scores"),
    "scale-missing": (" / math.sqrt(query.shape[-1])", ""),
    "scale-multiply": (" / math.sqrt(", " * math.sqrt("),
    "scale-no-root": ("math.sqrt(query.shape[-1])", "query.shape[-1]"),
    "scale-seq-len": ("math.sqrt(query.shape[-1])", "math.sqrt(query.shape[-2])"),
    "scale-dim-v": ("math.sqrt(query.shape[-1])", "math.sqrt(value.shape[-1])"),
    "scale-after-softmax": (
        f"{_SCALED}\n    if mask is not None:\n        {_MASKED}\n    weights = softmax(scores)",
        "scores = query @ key.transpose(-2, -1)\n    if mask is not None:\n        "
        f"{_MASKED}\n    weights = softmax(scores) / math.sqrt(query.shape[-1])",
    ),
    "softmax-query-axis": (
        "weights = softmax(scores)",
        "weights = softmax(scores.transpose(-2, -1)).transpose(-2, -1)",
    ),
    "softmax-head-axis": ("weights = softmax(scores)", "weights = softmax(scores.transpose(1, -1)).transpose(1, -1)"),
    "mask-inverted": ("masked_fill(~mask", "masked_fill(mask"),
    "mask-after-softmax": (
        f"        {_MASKED}\n    weights = softmax(scores)",
        "        return softmax(scores) * mask @ value, softmax(scores) * mask\n    weights = softmax(scores)",
    ),
    "mask-multiply-zero": (_MASKED, "scores = scores * mask"),
    "mask-add-0-minus1": (_MASKED, "scores = scores + (mask.to(scores.dtype) - 1)"),
    "mask-not-inplace": (_MASKED, "scores.masked_fill(~mask, -math.inf)"),
    "fill-too-small": ("-math.inf", "-1e4"),
    "zero-times-inf": (_MASKED, "scores = scores + (1 - mask.to(scores.dtype)) * -math.inf"),
    "causal-when-unmasked": (
        _SCALED,
        f"{_SCALED}\n    mask = causal_mask(*scores.shape[-2:]) if mask is None else mask",
    ),
    "causal-flipped": (".tril()", ".triu()"),
    "causal-strict": (".tril()", ".tril(-1)"),
    "causal-plus-one": (".tril()", ".tril(1)"),
    "pad-on-query": ("[:, None, None, :]", "[:, None, :, None]"),
    "padding-idx": ("ids != pad_id", "ids != 0"),
    "head-split-view": (_SPLIT, "return x.view(batch, self.num_heads, seq, self.d_model // self.num_heads)"),
    "head-merge-view": ("heads.transpose(1, 2).flatten(2)", "heads.reshape(heads.shape[0], heads.shape[2], -1)"),
    "head-interleaved": (_SPLIT, "return x.view(batch, seq, -1, self.num_heads).permute(0, 3, 1, 2)"),
    "qkv-relu": (_PROJECT, _PROJECT.replace("self.split(", "self.split(torch.relu(").replace("))", ")))")),
    "wo-missing": ("self.w_o(heads.transpose(1, 2).flatten(2))", "heads.transpose(1, 2).flatten(2)"),
    "wo-relu": ("self.w_o(heads.transpose(1, 2).flatten(2))", "torch.relu(self.w_o(heads.transpose(1, 2).flatten(2)))"),
    "v-proj-missing": ("self.split(self.w_v(value))", "self.split(value)"),
    "kv-swap": ("scaled_dot_product_attention(q, k, v, mask)", "scaled_dot_product_attention(q, v, k, mask)"),
    "qk-same-layer": ("self.w_k(key)", "self.w_q(key)"),
    "scale-d-model": (
        _ATTEND,
        "d_k = q.shape[-1]\n        " + _ATTEND.replace("(q,", "(q * math.sqrt(d_k) / math.sqrt(self.d_model),"),
    ),
    "scale-twice": (_ATTEND, _ATTEND.replace("(q,", "(q / math.sqrt(q.shape[-1]),")),
    "mask-first-sample": (
        _ATTEND,
        "mask = mask if mask is None or mask.ndim < 3 else mask[:1]\n        " + _ATTEND,
    ),
    "weights-averaged": (f"{_MERGE}", _MERGE.replace(", weights", ", weights.mean(dim=1)")),
}


def written(mistake: str) -> str:
    """The solution with one mistake."""
    old, new = MISTAKES[mistake]
    assert SOLUTION.count(old) == 1, f"{mistake}: the solution has {old!r} {SOLUTION.count(old)} times"
    return SOLUTION.replace(old, new)


def a_class(size: int) -> Iterator[tuple[str, str | None, str]]:
    """So many students: a name, the mistake that was made or None, and the file. Every third one is right."""
    ids = list(MISTAKES)
    wrong = 0
    for nth in range(size):
        if nth % 3 == 2:
            yield f"student-{nth:04}", None, f"{SOLUTION}\n# handed in by {nth}\n"
            continue
        mistake = ids[wrong % len(ids)]
        wrong += 1
        yield f"student-{nth:04}", mistake, f"{written(mistake)}\n# handed in by {nth}\n"
