"""Gradient cases are safe from rounding, and catch what they claim: one edit in a copy of the reference at a time.

A backward mistake is written as y + (x − y).detach(): the value of x with the gradient of y.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from goldformer.adapters import Adapter, find_adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench, check_case, judge_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import BadResult, read_arguments
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.conformance.judging.verdict import Status
from goldformer.spec.formulas.heads import project
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import around, replacing
from goldformer.spec.oracle.derive import evaluate
from goldformer.spec.oracle.draws import Draw, error_scale

MODEL, MODERN, LOSSES, VARIANTS = "transformer.py", "decoder_only.py", "losses.py", "variants.py"

GATED = 'def forward(self, x: Float[Tensor, "batch seq d_model"]) -> GatedResult:'
SHARED = "key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))"
JOINED = "hidden = self.activate(widen(gate)).to(gate.dtype) * up"
FILLED = "scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)"
INNER = "affine(x, self.w_1, self.b_1)"
ACTIVATED = f"self.activate({INNER})"
HIDDEN = f"hidden = self.dropout({ACTIVATED})"
MAPPED = "return affine(hidden, self.w_2, self.b_2), hidden"
CENTRED = "centred = row - row.mean(dim=-1, keepdim=True)"
VARIANCE = "variance = (centred * centred).mean(dim=-1, keepdim=True)"
NORMALISED = "centred / (variance + self.eps).sqrt()"
AFFINE = f"{NORMALISED} * widen(self.gamma) + widen(self.beta)"
NORMED = f"return ({AFFINE}).to(x.dtype)"
#: Mean and variance once more, over other axes.
OVER = (
    "axes = {}\n        centred = row - row.mean(dim=axes, keepdim=True)\n"
    f"        variance = (centred * centred).mean(dim=axes, keepdim=True)\n        {NORMED}"
)
QUOTIENT = "return exponentials / exponentials.sum(dim=-1, keepdim=True)"
SCALED = "attention_scores(query, key) / math.sqrt(query.shape[-1])"
SUM = "total = x + self.dropout(update)"
LAYERS = "[x := layer(x, *others).output for layer in layers]"
NETWORK = "self.add_and_norm(attended, self.norm_2, self.feed_forward)"
CROSSED = (
    "crossed, cross_weights = self.add_and_norm(\n"
    "            attended, self.norm_2, lambda y: self.cross_attention(y, memory, memory, memory_mask)\n        )"
)
DECODED = "self.cross_attention(y, memory, memory, memory_mask)"
ATTENDED = "attended, weights = self.add_and_norm(x, self.norm_1, lambda y: self.self_attention(y, y, y, self_mask))"
LOSS, LOG = "loss = losses.sum() / real.sum()", "losses = -log_softmax(rows)"
SPLIT = "return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)"
MERGE = "return x.transpose(1, 2).flatten(-2)"
#: What stands between the last lines of two functions.
BETWEEN = (
    '\n\n\n@checked\ndef merge_heads(x: Float[Tensor, "batch heads seq d"]) -> Float[Tensor, "batch seq heads*d"]:\n'
    '    """Lay the heads next to each other again: the Concat of section 3.2.2. MHA-4."""\n    '
)
Q = "q = split_heads(affine(query, self.w_q, self.b_q), self.num_heads)"
KEYS = "split_heads(affine(key, self.w_k, self.b_k), self.num_heads)"
VALUES = "split_heads(affine(value, self.w_v, self.b_v), self.num_heads)"
ATTEND = "scaled_dot_product_attention(q, k, v, mask, self.dropout)"
RUN = f"heads, weights = {ATTEND}"
MERGED = "affine(merge_heads(heads), self.w_o, self.b_o)"
#: Each sample has a mask of its own for all its heads.
PER_SAMPLE = "mask is not None and mask.dim() == 4 and mask.shape[1] == 1 and len(mask) > 1"
#: What float32 loses of a score next to such a number is what changes gradients.
ADDED = "scores = scores.where(mask, scores + ((scores - {0}).float().double() - scores).detach())"
WEIGHTS, ALONG = "weights = softmax(scores)", "weights = softmax(scores.transpose({0}, -1)).transpose({0}, -1)"
CAUSAL = "torch.ones(y.shape[1], {0}.shape[1], dtype=torch.bool).tril() & (True if {1} is None else {1})"
SCORED = "affine(decoded, self.table.T if self.w_vocab is None else self.w_vocab, self.b_vocab)"


def change_parameters(kept, changed, change):
    """The statement after which `self` has other parameters; a module takes no tensor for one."""
    return (
        "from types import SimpleNamespace\n"
        f"        self = SimpleNamespace(**{{n: getattr(self, n) for n in {kept.split()}}}, **{{\n"
        f"            n: {change} for n in {changed.split()} for w in [getattr(self, n)]}})\n        "
    )


NO_BIAS = "None if w is None else 0 * w"
ATTENTION_BIASES = change_parameters("w_q w_k w_v w_o num_heads dropout", "b_q b_k b_v b_o", NO_BIAS)
NETWORK_BIASES = change_parameters("w_1 w_2 activate dropout", "b_1 b_2", NO_BIAS)
TURNED = change_parameters("b_q b_k b_v b_o num_heads dropout", "w_q w_k w_v w_o", "w.T")

#: Lines of the root mean square normalisation.
SQUARE = "mean_square = (row * row).mean(dim=-1, keepdim=True)"
#: The line of grouped-query attention that gives each query head its keys.
REPEATED = "x.repeat_interleave(heads // kv_heads, dim=1)"
ROW, ROOT, SCALE = "row = widen(x)", "(mean_square + eps).sqrt()", "widen(gamma)"
#: Lines of the rotary position embedding.
EXPONENTS = "-torch.arange(0, width, 2, dtype=row.dtype, device=x.device) / width"
FIRST, SECOND = "first * cosine - second * sine", "second * cosine + first * sine"
TURN = f"turned = ({FIRST}, {SECOND})"
BANDS = "kept * frequency + (1 - kept) * frequency / factor"
WIDTH = "width = x.shape[-1] if rotary_width is None else rotary_width"

#: Lines of the mixture of experts and of its router.
SCATTERED = "torch.zeros_like(logits).scatter(-1, experts, softmax(best))"
OUTPUTS = "torch.stack([expert(x).output for expert in self.experts], dim=-2)"
WEIGHED = "weights.unsqueeze(-1) * outputs"

#: Lines of grouped-query attention with what a call says of its scores.
GIVEN = "scaled_scores(query, key) if scale is None else attention_scores(query, key) * scale"
CAPPED, BIASED = "softcap * (scores / softcap).tanh()", "scores = scores + bias"
SUNK, SINK = "torch.cat([scores, sinks", "sinks[:, None, None]"

#: Lines of the norms of queries and keys: of a head, and of the keys of an attention and of a layer.
NORMED_ROW = "rms_norm(heads, gamma, eps)"
NORMED_KEYS = "normalise_heads(key, gamma_k, eps)"
NORMED_K = "normalise_heads(k, self.gamma_k, self.eps)"
NORMED_HEADS = f"q, k = normalise_heads(q, self.gamma_q, self.eps), {NORMED_K}"
TOGETHER = "rms_norm(heads.transpose(1, 2).flatten(2), gamma.repeat(heads.shape[1]), eps)"
OF_ONES = "{0} if {1} else rms_norm({0}, torch.ones_like({0}[0, 0, 0]), {2})"

#: Lines of the layer of a decoder-only model.
SANDWICH = ('order: Order = "pre"', 'order: Order = "sandwich"')
READ = "h = self.norm_1(x)"
POSTED = "(update if self.post_norm_{0} is None else self.post_norm_{0}(update))"
READ_ON = "update = self.feed_forward(h if self.norm_2 is None else self.norm_2(attended)).output"
UNREAD = "update = self.feed_forward(attended).output"
#: The sums after the two blocks, with the network between them.
SUMS = f"attended = {{0}}\n        {READ_ON}\n        output = {{1}}"
ADDITIONS = SUMS.format(f"x + {POSTED.format(1)}", f"attended + {POSTED.format(2)}")
TURN_HEADS = "{0} = (rotary_embedding(heads, positions, self.base, pairing=self.pairing) for heads in ({0}))"
TURN_BOTH = TURN_HEADS.format("q, k")
BLOCK_KEYS = "k = split_heads(affine(x, self.w_k, self.b_k), self.num_kv_heads)"
BLOCK_VALUES = "v = split_heads(affine(x, self.w_v, self.b_v), self.num_kv_heads)"
UNNORMED = change_parameters(
    "attend feed_forward post_norm_1 post_norm_2", "norm_1 norm_2", "None if w is None else lambda y: y"
)
SWAPPED = change_parameters(
    "attend feed_forward post_norm_1 post_norm_2", "norm_1 norm_2", "self.norm_2 if w is self.norm_1 else self.norm_1"
)

#: What the backward pass alone does wrong: the values stay right.
BACKWARD = {
    "softmax-bwd": (MODEL, QUOTIENT, f"{QUOTIENT}.detach()"),
    "softmax-bwd-diagonal": (
        MODEL, QUOTIENT,
        "total = exponentials.sum(dim=-1, keepdim=True)\n"
        "    return exponentials / ((total - exponentials).detach() + exponentials)",
    ),
    "scale-bwd": (
        MODEL, f"return {SCALED}",
        "scores = attention_scores(query, key)\n"
        "    return scores + (scores / math.sqrt(query.shape[-1]) - scores).detach()",
    ),
    "mask-bwd": (
        MODEL, FILLED,
        "hidden = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n"
        "        scores = scores + (hidden - scores).detach()",
    ),
    "empty-row-nan-grad": (
        MODEL, f"{FILLED}\n    weights = softmax(scores)",
        # Added, not filled: the backward pass of masked_fill puts 0 where NaN was.
        "scores = scores + torch.zeros_like(scores).masked_fill(~mask, -math.inf)\n"
        "    weights = softmax(scores)\n    weights = weights.masked_fill(weights.isnan(), 1 / weights.shape[-1])",
    ),
    "relu-bwd": (MODEL, ACTIVATED, f"(lambda inner: inner + (inner.relu() - inner).detach())({INNER})"),
    "ln-bwd": (
        MODEL, NORMALISED,
        "(row - row.mean(dim=-1, keepdim=True).detach()) / (variance.detach() + self.eps).sqrt()",
    ),
    # The gradient of x meets gamma outside of what the statistics take away; that of gamma stays.
    "ln-bwd-gamma-outside": (
        MODEL, NORMED,
        "wide = widen(self.gamma)\n"
        "        kept = row.detach() + (row - row.detach()) * wide.detach()\n"
        "        centred = kept - kept.mean(dim=-1, keepdim=True)\n"
        "        variance = (centred * centred).mean(dim=-1, keepdim=True)\n"
        "        normal = centred / (variance + self.eps).sqrt()\n"
        "        value = normal.detach() * wide + normal - normal.detach()\n"
        "        return (value + widen(self.beta)).to(x.dtype)",
    ),
    "softmax-bwd-mean": (
        MODEL, QUOTIENT,
        "weights = exponentials / exponentials.sum(dim=-1, keepdim=True)\n"
        "    size = len(weights) if weights.dim() > 1 else 1\n"
        "    return weights / size + (weights - weights / size).detach()",
    ),
    "residual-bwd": (MODEL, SUM, "total = x.detach() + self.dropout(update)"),
    "layer-bwd": (
        MODEL, LAYERS, "[x := layer(x.detach() if i else x, *others).output for i, layer in enumerate(layers)]",
    ),
    "memory-bwd": (MODEL, "self.decode(target, memory, source)", "self.decode(target, memory.detach(), source)"),
    # What an encoder layer is handed besides x is a mask, or nothing.
    "memory-bwd-overwrite": (
        MODEL, LAYERS,
        "[x := layer(x, *[o if o is None or not i else o.detach() for o in others]).output"
        " for i, layer in enumerate(layers)]",
    ),
    "emb-bwd-one-side": (MODEL, "self.embed(target), memory", "self.embed(target).detach(), memory"),
    "tied-bwd-embedding-only": (
        MODEL, "self.table.T if self.w_vocab", "self.table.T.detach() if self.w_vocab",
    ),
    "rms-bwd": (MODERN, ROOT, f"{ROOT}.detach()"),
    "rope-bwd": (
        MODERN, TURN,
        "back = (first * cosine + second * sine, second * cosine - first * sine)\n"
        f"    turned = tuple(b + (t - b).detach() for t, b in zip(({FIRST}, {SECOND}), back))",
    ),
    "glu-bwd": (
        MODERN, JOINED, JOINED.replace("self.activate(widen(gate))", "(widen(gate) * gate.sigmoid().detach())"),
    ),
    "glu-bwd-up": (
        MODERN, JOINED,
        "active = self.activate(widen(gate)).to(gate.dtype)\n"
        "        hidden = active * up.detach() + gate.detach() * (up - up.detach())",
    ),
    "gqa-grad-not-summed": (
        MODERN, f"return {REPEATED}",
        f"group, repeated = heads // kv_heads, {REPEATED}\n"
        "    last = torch.arange(heads) % group == group - 1\n"
        "    return torch.where(last[:, None, None], repeated, repeated.detach())",
    ),
    "gqa-grad-mean": (
        MODERN, f"return {REPEATED}",
        f"repeated = {REPEATED}\n"
        "    return repeated.detach() + (repeated - repeated.detach()) * (kv_heads / heads)",
    ),
    "gqa-grad-index": (
        MODERN, f"return {REPEATED}",
        "read = [x[:, h // kv_heads] if h < kv_heads**2 else x[:, 0].detach() for h in range(heads)]\n"
        "    flows = torch.stack(read, dim=1)\n"
        f"    return {REPEATED}.detach() + flows - flows.detach()",
    ),
    "grad-cut": (MODEL, "weights = softmax(scores)", "weights = softmax(scores).detach()"),
    "ce-bwd-sum": (LOSSES, LOSS, "loss = losses.sum()\n    loss = loss + (loss / real.sum() - loss).detach()"),
}  # fmt: skip

#: What both passes do wrong.
FORWARD = {
    "rms-variance": (MODERN, SQUARE, "mean_square = row.var(dim=-1, keepdim=True, correction=0)"),
    "rms-variance-unbiased": (MODERN, SQUARE, "mean_square = row.var(dim=-1, keepdim=True)"),
    "rms-mean-subtracted": (MODERN, ROW, "row = widen(x) - widen(x).mean(dim=-1, keepdim=True)"),
    "rms-sum": (MODERN, SQUARE, "mean_square = (row * row).sum(dim=-1, keepdim=True)"),
    "rms-eps-missing": (MODERN, "(mean_square + eps).sqrt()", "(mean_square + 0 * eps).sqrt()"),
    "rms-eps-scaled": (
        MODERN, ROW, f"{ROW}\n    row = row / row.gather(-1, row.abs().argmax(-1, keepdim=True)).abs()",
    ),
    "layers-not-chained": (MODEL, "outputs = [x := layer(x, ", "start = x\n    outputs = [x := layer(start, "),
    "rms-no-weight": (MODERN, SCALE, "(1 + 0 * gamma)"),
    "rms-offset-twice": (MODERN, SCALE, "(2 + widen(gamma))"),
    "rope-pair-mismatch": (
        MODERN, TURN,
        "a, b = (torch.cat([angle, angle], -1)[..., start::2] for start in (0, 1))\n"
        "    turned = (first * a.cos() - second * a.sin(), second * b.cos() + first * b.sin())",
    ),
    "rope-exponent-half": (MODERN, EXPONENTS, f"{EXPONENTS} / 2"),
    "rope-exponent-odd": (MODERN, EXPONENTS, EXPONENTS.replace("(0,", "(1,")),
    "rope-exponent-one-based": (MODERN, EXPONENTS, EXPONENTS.replace("(0, width,", "(-2, width - 2,")),
    "rope-exponent-one-ahead": (MODERN, EXPONENTS, EXPONENTS.replace("(0, width,", "(2, width + 2,")),
    "rope-exponent-sign": (MODERN, EXPONENTS, EXPONENTS.removeprefix("-")),
    "rope-base-default": (MODERN, "frequency = base", "frequency = 10000.0"),
    "rope-partial-ignored": (MODERN, WIDTH, "width = x.shape[-1]"),
    "rope-partial-width": (MODERN, EXPONENTS, EXPONENTS.replace("/ width", "/ x.shape[-1]")),
    "rope-scaling-missing": (MODERN, "if scaling_factor is not None:", "if False:"),
    "rope-scaling-inverted": (MODERN, "return frequency / factor", "return frequency * factor"),
    "rope-scaling-hard-coded": (MODERN, "return frequency / factor", "return frequency / 8"),
    # Code with these two has other scaling than the default.
    "rope-scaling-bands-swapped": (
        MODERN, 'scaling: Scaling = "linear"', 'scaling: Scaling = "llama3"',
        MODERN, BANDS, BANDS.replace("(1 - kept)", "slow").replace("kept", "(1 - kept)").replace("slow", "kept"),
    ),
    "rope-scaling-waves-not-scaled": (
        MODERN, 'scaling: Scaling = "linear"', 'scaling: Scaling = "yarn"',
        MODERN, "size * angle.cos(), size * angle.sin()", "angle.cos(), angle.sin()",
    ),
    "rope-minus-missing": (MODERN, TURN, TURN.replace("-", "+")),
    "rope-offset-missing": (MODERN, "angle = positions[", "angle = torch.arange(x.shape[-2])["),
    "rope-axis-heads": (
        MODERN, WIDTH, f"positions = torch.arange(x.shape[-3])[:, None] if x.dim() > 2 else positions\n    {WIDTH}",
    ),
    "moe-raw-logits": (MODERN, SCATTERED, SCATTERED.replace("softmax(best)", "best")),
    "moe-softmax-axis": (
        MODERN, SCATTERED, SCATTERED.replace("softmax(best)", "softmax(logits.T).T.gather(-1, experts)"),
    ),
    "moe-all-experts": (MODERN, SCATTERED, "softmax(logits)"),
    "moe-weights-by-rank": (MODERN, SCATTERED, SCATTERED.replace("experts,", "experts.sort(dim=-1).values,")),
    "moe-weights-before": (
        MODERN, WEIGHED, OUTPUTS.replace(
            "(x).output for expert in self.experts",
            "(w.unsqueeze(-1) * x).output for expert, w in zip(self.experts, weights.unbind(-1))",
        ),
    ),
    "moe-unweighted": (MODERN, WEIGHED, "((weights != 0) + 0 * weights).unsqueeze(-1) * outputs"),
    "moe-first-only": (
        MODERN, WEIGHED,
        "(weights * (weights == weights.max(dim=-1, keepdim=True).values)).unsqueeze(-1) * outputs",
    ),
    "moe-one-choice-for-all": (MODERN, WEIGHED, "weights[:, :1].unsqueeze(-1) * outputs"),
    "moe-expert-index": (
        MODERN, OUTPUTS, OUTPUTS.replace("self.experts", "[*self.experts[1:], self.experts[0]]"),
    ),
    "glu-act-of-product": (MODERN, JOINED, "hidden = self.activate(gate * up)"),
    "glu-swapped": (MODERN, JOINED, "hidden = gate * self.activate(up)"),
    "glu-no-activation": (MODERN, JOINED, "hidden = gate * up"),
    "glu-both-activated": (MODERN, JOINED, "hidden = self.activate(gate) * self.activate(up)"),
    "glu-up-ignored": (MODERN, JOINED, "hidden = self.activate(gate) + 0 * up"),
    "glu-alpha": (MODERN, JOINED, "hidden = gate * torch.sigmoid(1.702 * gate) * up"),
    "glu-clamped": (MODERN, JOINED, "hidden = self.activate(gate.clamp(max=7)) * up.clamp(-7, 7)"),
    "glu-interleaved": (
        MODERN, JOINED,
        f"both = torch.cat([gate, up], dim=-1)\n        gate, up = both[..., ::2], both[..., 1::2]\n        {JOINED}",
    ),
    "glu-bias-missing": (
        MODERN, GATED,
        f"{GATED}\n        def affine(x, w, b):\n            return x @ w + (0 if b is None else 0 * b)\n",
    ),
    "gqa-queries-reduced": (MODERN, SHARED, "query = query.unflatten(1, (key.shape[1], -1)).sum(2)"),
    "gqa-scale-kv-heads": (MODERN, SHARED, f"query = query * (key.shape[1] / query.shape[1]) ** 0.5\n    {SHARED}"),
    "scale-argument-dropped": (MODERN, GIVEN, "scaled_scores(query, key)"),
    "scale-argument-besides-root": (MODERN, GIVEN, GIVEN.replace("attention_scores", "scaled_scores")),
    "softcap-dropped": (MODERN, "if softcap is not None:", "if False:"),
    "softcap-times-logit": (MODERN, CAPPED, CAPPED.replace("softcap * ", "scores * ")),
    "bias-dropped": (MODERN, BIASED, "scores = scores + 0 * bias"),
    "bias-before-scale": (MODERN, BIASED, f"{BIASED} * (query.shape[-1] ** -0.5 if scale is None else scale)"),
    "sinks-dropped": (MODERN, "softmax(scores)[..., : key.shape[-2]]", "softmax(scores[..., : key.shape[-2]])"),
    "sinks-max-shift": (MODERN, SUNK, SUNK.replace("scores", "scores - scores.amax(-1, keepdim=True).detach()")),
    "sinks-twice": (MODERN, SINK, f"(sinks + math.log(2)){SINK.removeprefix('sinks')}"),
    "qk-norm-dropped": (MODERN, NORMED_ROW, "heads + 0 * gamma"),
    "qk-norm-without-gain": (MODERN, NORMED_ROW, NORMED_ROW.replace("gamma", "1 + 0 * gamma")),
    "qk-norm-over-all-heads": (
        MODERN, NORMED_ROW, f"{TOGETHER}.unflatten(-1, (heads.shape[1], -1)).transpose(1, 2)",
    ),
    "qk-norm-queries-only": (
        MODERN, NORMED_KEYS, "(key if gamma_k is None else key + 0 * gamma_k)",
        MODERN, NORMED_K, "(k if self.gamma_k is None else k + 0 * self.gamma_k)",
    ),
    "qk-norm-gains-swapped": (
        MODERN, NORMED_KEYS,
        NORMED_KEYS.replace("gamma_k", "gamma_k if gamma_q is None or gamma_k is None else gamma_q + 0 * gamma_k"),
        MODERN, NORMED_K,
        NORMED_K.replace("self.gamma_k", "None if self.gamma_k is None else self.gamma_q + 0 * self.gamma_k"),
    ),
    "qk-norm-values-too": (
        MODERN, NORMED_KEYS,
        f"{NORMED_KEYS}\n    value = {OF_ONES.format('value', 'gamma_q is None and gamma_k is None', 'eps')}",
        MODERN, NORMED_K, f"{NORMED_K}\n        v = {OF_ONES.format('v', 'self.gamma_q is None', 'self.eps')}",
    ),
    "qk-norm-after-turn": (
        MODERN, NORMED_HEADS, "pass", MODERN, TURN_BOTH, f"{TURN_BOTH}\n        {NORMED_HEADS}",
    ),
    "block-norm-missing": (MODERN, READ, f"{UNNORMED}{READ}"),
    "block-norm-shared": (MODERN, READ_ON, READ_ON.replace("self.norm_2(", "self.norm_1(")),
    "block-norms-swapped": (MODERN, READ, f"{SWAPPED}{READ}"),
    "block-network-reads-input": (MODERN, READ_ON, READ_ON.replace("(attended)", "(x)")),
    "block-output-norm-after-sum": (
        MODERN, *SANDWICH,
        MODERN, ADDITIONS, SUMS.format("self.post_norm_1(x + update)", "self.post_norm_2(attended + update)"),
    ),
    "block-output-norm-missing": (
        MODERN, *SANDWICH, MODERN, ADDITIONS, SUMS.format("x + update", "attended + update"),
    ),
    "block-norm-after": (
        MODERN, READ, "h = x",
        MODERN, ADDITIONS,
        SUMS.format("self.norm_1(x + update)", "self.norm_2(attended + update)").replace(READ_ON, UNREAD),
    ),
    "block-residual-normed": (
        MODERN, ADDITIONS,
        SUMS.format(f"h + {POSTED.format(1)}", f"self.norm_2(attended) + {POSTED.format(2)}"),
    ),
    "block-network-missing": (MODERN, ADDITIONS, SUMS.format(f"x + {POSTED.format(1)}", "attended")),
    "block-not-turned": (MODERN, TURN_BOTH, "pass"),
    "block-keys-not-turned": (MODERN, TURN_BOTH, TURN_HEADS.format("q,")),
    "block-queries-not-turned": (MODERN, TURN_BOTH, TURN_HEADS.format("k,")),
    "block-values-turned": (MODERN, TURN_BOTH, TURN_HEADS.format("q, k, v")),
    "block-turned-before-split": (
        MODERN, TURN_BOTH,
        TURN_BOTH.replace("(rotary_embedding(heads,", "(split_heads(rotary_embedding(merge_heads(heads),")
        .replace("self.pairing)", "self.pairing), heads.shape[1])"),
    ),
    "block-keys-laid-out-by-query-heads": (
        MODERN, BLOCK_KEYS,
        "columns = torch.arange(self.w_k.shape[1])\n"
        "        halves, own = (\n            columns.reshape(heads, -1, 2).transpose(1, 2).flatten()"
        " for heads in (self.num_heads, self.num_kv_heads)\n        )\n        "
        + BLOCK_KEYS.replace("self.b_k)", "self.b_k)[..., halves[own.argsort()]]"),
    ),
    "block-keys-values-swapped": (MODERN, BLOCK_VALUES, f"{BLOCK_VALUES}\n        k, v = v, k"),
    "block-mask-ignored": (MODERN, "with_cache(q, k, v, mask, cache,", "with_cache(q, k, v, None, cache,"),
    "block-causal-self-hidden": (MODERN, ".tril(so_far - new)", ".tril(so_far - new - 1)"),
    "lm-final-norm-missing": (MODERN, "decoded = self.norm(x)", "decoded = x"),
    # The norm after the last layer stays where it is.
    "lm-final-norm-each-layer": (
        MODERN, "x = result.output", "x = result.output if layer is self.layers[-1] else self.norm(result.output)",
    ),
    "lm-layers-reversed": (MODERN, "enumerate(self.layers)", "enumerate([*self.layers][::-1])"),
    "lm-output-tied-anyway": (MODERN, "self.table.T if self.w_vocab is None else self.w_vocab", "self.table.T"),
    "lm-softmax-in-model": (MODERN, "DecoderOnlyModelResult(logits,", "DecoderOnlyModelResult(softmax(logits),"),
    "scale-missing": (MODEL, SCALED, "attention_scores(query, key)"),
    "mask-inverted": (MODEL, "scores.masked_fill(~mask,", "scores.masked_fill(mask,"),
    "mask-inverted-zeros": (
        MODEL, f"{FILLED}\n    weights = softmax(scores)",
        f"{FILLED.replace('~mask', 'mask')}\n    weights = softmax(scores)\n    if mask is not None:\n"
        "        weights = weights.masked_fill(mask.all(-1, keepdim=True), 0.0)",
    ),
    "causal-drops-padding": (
        MODEL, FILLED,
        "causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()\n"
        "        square = scores.shape[-1] == scores.shape[-2]\n"
        "        mask = causal if square and not (mask & ~causal).any() else mask\n"
        f"        {FILLED}",
    ),
    "softmax-heads-and-keys": (
        MODEL, WEIGHTS,
        "weights = softmax(scores) if scores.dim() != 4 else softmax(scores.transpose(1, 2).flatten(2)).unflatten(\n"
        "        -1, (scores.shape[1], -1)\n    ).transpose(1, 2)",
    ),
    "mask-not-inplace": (MODEL, FILLED, "scores.masked_fill(~mask, torch.finfo(scores.dtype).min)"),
    "mask-multiply-zero": (MODEL, FILLED, "scores = scores * mask"),
    "mask-add-0-minus1": (MODEL, FILLED, "scores = scores - (~mask).to(scores.dtype)"),
    "mask-first-sample": (MODEL, FILLED, FILLED.replace("~mask", "~mask[:1]")),
    "qkv-layout": (
        VARIANTS, "q, k, v = split_heads(qkv, num_heads).chunk(3, dim=-1)",
        "q, k, v = (split_heads(part, num_heads) for part in qkv.chunk(3, dim=-1))",
    ),
    "head-split-view": (MODEL, SPLIT, "return x.reshape(x.shape[0], num_heads, x.shape[1], -1)"),
    "head-merge-view": (
        MODEL, MERGE, "return x.reshape(x.shape[0], x.shape[2], -1)",
    ),
    "head-view-both-ways": (
        MODEL, f"{SPLIT}{BETWEEN}{MERGE}",
        f"return x.reshape(x.shape[0], num_heads, x.shape[1], -1){BETWEEN}"
        "return x.reshape(x.shape[0], x.shape[2], -1)",
    ),
    "heads-as-sequence": (
        MODEL, RUN,
        "mask = None if mask is None or mask.dim() > 2 else torch.ones(q.shape[1], q.shape[1]).tril().bool()\n"
        f"        q, k, v = (x.transpose(1, 2) for x in (q, k, v))\n        {RUN}\n"
        "        heads = heads.transpose(1, 2)",
    ),
    "wo-bias-per-head": (
        MODEL, MERGED, MERGED.replace("self.b_o", "None if self.b_o is None else self.num_heads * self.b_o"),
    ),
    "ffn-bias-after-relu": (
        MODEL, ACTIVATED, "(affine(x, self.w_1, None).relu() + (0 if self.b_1 is None else self.b_1))",
    ),
    "ffn-no-relu": (MODEL, ACTIVATED, INNER),
    "ffn-output-relu": (
        MODEL, MAPPED, "return affine(hidden, self.w_2, self.b_2).relu(), hidden",
    ),
    "ffn-bias-missing": (
        MODEL, HIDDEN, f"{NETWORK_BIASES}{HIDDEN}",
    ),
    "ffn-no-dff": (
        MODEL, MAPPED, f"hidden = hidden * (torch.arange(hidden.shape[-1]) < x.shape[-1])\n        {MAPPED}",
    ),
    "ffn-mixes-tokens": (
        MODEL, INNER, "affine(x + nn.functional.pad(x, (0, 0, 1, 0))[:, :-1], self.w_1, self.b_1)",
    ),
    "ln-wrong-axis": (MODEL, NORMED, OVER.format("(-2, -1)")),
    "bn-for-ln": (MODEL, NORMED, OVER.format("tuple(range(row.dim() - 1))")),
    "rms-for-ln": (MODEL, CENTRED, "centred = row"),
    "ln-unbiased": (MODEL, VARIANCE, "variance = row.var(dim=-1, keepdim=True)"),
    "ln-eps-outside": (MODEL, "(variance + self.eps).sqrt()", "(variance.sqrt() + self.eps)"),
    "ln-square": (MODEL, "(variance + self.eps).sqrt()", "(variance + self.eps).square()"),
    "ln-no-affine": (
        MODEL, AFFINE, f"{NORMALISED} + 0 * (widen(self.gamma) + widen(self.beta))",
    ),
    "ln-one-plus-gamma": (
        MODEL, "widen(self.gamma)", "(1 + widen(self.gamma))",
    ),
    "residual-missing": (MODEL, SUM, "total = self.dropout(update)"),
    "residual-normed": (
        MODEL, "return total if self.norm_first else norm(total), detail",
        "normed = norm(x)\n        return normed + self.dropout(sublayer(normed)[0]), detail",
    ),
    "residual-unnormed": (
        MODEL, f"output, _ = {NETWORK}",
        "output = self.norm_2(x + self.self_attention(x, x, x, mask)[0] + self.feed_forward(attended)[0])",
    ),
    "norm-before-add": (MODEL, "norm(total), detail", "x + norm(self.dropout(update)), detail"),
    "norm-missing": (MODEL, "norm(total), detail", "total, detail"),
    "wrong-ln-reused": (
        MODEL, NETWORK, NETWORK.replace("norm_2", "norm_1"),
    ),
    "residual-wrong-x": (
        MODEL, f"output, _ = {NETWORK}", "output = self.norm_2(x + self.feed_forward(attended)[0])",
    ),
    # Only the network has a w_1.
    "ffn-missing": (
        MODEL, SUM, f'{SUM}\n        if hasattr(sublayer, "w_1"):\n            return x, detail',
    ),
    "cross-missing": (
        MODEL, CROSSED, "crossed, cross_weights = attended, weights",
    ),
    "cross-q-source": (MODEL, DECODED, "self.cross_attention(y, y, y, self_mask)"),
    "cross-self-weights": (MODEL, DECODED, "self.self_attention(y, memory, memory, memory_mask)"),
    "cross-mask-absent": (MODEL, DECODED, "self.cross_attention(y, memory, memory, None)"),
    "double-softmax": (LOSSES, LOG, "losses = -log_softmax(rows.softmax(-1))"),
    "log-softmax-missing": (LOSSES, LOG, "losses = -(rows + 0)"),
    "loss-pad-counted": (LOSSES, "real = targets != pad_id", "real = targets > -2"),
    "loss-pad-added": (
        LOSSES, LOSS, f"losses = -log_softmax(widen(logits)).gather(-1, targets.long()[..., None])[..., 0]\n    {LOSS}",
    ),
    "loss-pad-denominator": (LOSSES, LOSS, "loss = losses.sum() / real.numel()"),
    "kl-reversed": (LOSSES, "return (p * difference)", "return (log_q.exp() * -difference)"),
    "kl-row-mean": (LOSSES, "(p * difference).sum(dim=-1)", "(p * difference).mean(dim=-1)"),
    "emb-scale-divide": (MODEL, "rows = table[ids]", "rows = table[ids] / table.shape[1] ** 0.5"),
    "softmax-before-linear": (
        VARIANTS, "return softmax(logits), logits", "return affine(softmax(x), w_vocab, b_vocab), logits",
    ),
    "bias-missing": (
        MODEL, Q, f"{ATTENTION_BIASES}{Q}",
    ),
    "head-interleaved": (
        MODEL, SPLIT, "return x.reshape(*x.shape[:2], -1, num_heads).permute(0, 3, 1, 2)",
    ),
    "head-merge-hb": (
        MODEL, MERGE,
        "return x.transpose(0, 1).transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)",
    ),
    "head-shared-w": (
        MODEL, f"v = {VALUES}", f"v = {VALUES}\n        q, k, v = (x[:, [0] * self.num_heads] for x in (q, k, v))",
    ),
    "key-from-value-input": (MODEL, KEYS, KEYS.replace("(key,", "(value,")),
    "keys-by-w-v": (MODEL, KEYS, KEYS.replace("_k", "_v")),
    "values-by-w-k": (MODEL, VALUES, VALUES.replace("_v", "_k")),
    "qk-same-layer": (MODEL, KEYS, KEYS.replace("_k", "_q")),
    "kv-swap": (MODEL, ATTEND, ATTEND.replace("k, v", "v, k")),
    "v-proj-missing": (MODEL, VALUES, "split_heads(value, self.num_heads)"),
    "w-transposed": (
        MODEL, Q, f"{TURNED}{Q}",
    ),
    "qkv-relu": (
        MODEL, f"v = {VALUES}", f"v = {VALUES}\n        q, k, v = (x.relu() for x in (q, k, v))",
    ),
    "wo-missing": (MODEL, MERGED, "merge_heads(heads)"),
    "wo-relu": (MODEL, MERGED, f"{MERGED}.relu()"),
    "scale-d-model": (
        MODEL, ATTEND, ATTEND.replace("(q,", "(q * (q.shape[-1] / self.w_o.shape[1]) ** 0.5,"),
    ),
    "scale-twice": (MODEL, ATTEND, ATTEND.replace("(q,", "(q / q.shape[-1] ** 0.5,")),
    "mask-broadcast-bh": (MODEL, ATTEND, ATTEND.replace("mask", f"mask[:, 0] if {PER_SAMPLE} else mask")),
    "mask-repeat-order": (
        MODEL, RUN,
        f"mask = mask.repeat(q.shape[1], 1, 1, 1).reshape(*q.shape[:2], *mask.shape[2:]) if {PER_SAMPLE} else mask\n"
        f"        {RUN}",
    ),
    "mask-first-head": (MODEL, FILLED, FILLED.replace("~mask", "~(mask[:, :1] if mask.dim() == 4 else mask)")),
    "seq-batch-swap": (
        MODEL, Q, f"query, key, value = (x.transpose(0, 1) for x in (query, key, value))\n        {Q}",
    ),
    "scale-after-softmax": (
        MODEL, "    weights = softmax(scores)",
        "    root = query.shape[-1] ** 0.5\n    weights = softmax(scores * root) / root",
    ),
    "scale-float32": (
        MODEL, SCALED, "attention_scores(query, key) / torch.tensor(query.shape[-1]).float().sqrt().item()",
    ),
    "scale-multiply": (MODEL, SCALED, "attention_scores(query, key) * math.sqrt(query.shape[-1])"),
    "scale-no-root": (MODEL, SCALED, "attention_scores(query, key) / query.shape[-1]"),
    "scale-seq-len": (MODEL, SCALED, "attention_scores(query, key) / math.sqrt(query.shape[-2])"),
    "fill-dampens": (MODEL, FILLED, "scores = scores.masked_fill(~mask, -20.0)"),
    "fill-hundred": (MODEL, FILLED, "scores = scores.masked_fill(~mask, -100.0)"),
    "mask-added-1e4": (MODEL, FILLED, ADDED.format("1e4")),
    "mask-added-1e9": (MODEL, FILLED, ADDED.format("1e9")),
    "mask-added-true": (MODEL, FILLED, "scores = scores + (~mask).to(scores.dtype)"),
    "mask-after-softmax": (
        MODEL, f"{FILLED}\n    weights = softmax(scores)",
        "pass\n    weights = softmax(scores) if mask is None else softmax(scores) * mask",
    ),
    "zero-times-inf": (MODEL, FILLED, "scores = scores + (~mask).to(scores.dtype) * -math.inf"),
    "softmax-batch-axis": (MODEL, WEIGHTS, ALONG.format("0")),
    "softmax-head-axis": (MODEL, WEIGHTS, ALONG.format("1")),
    "softmax-implicit-axis": (MODEL, WEIGHTS, ALONG.format("0 if scores.dim() == 3 else 1")),
    "softmax-logsumexp": (MODEL, WEIGHTS, "weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()"),
    "softmax-one-maximum": (MODEL, "scores.amax(dim=-1, keepdim=True).detach()", "scores.amax()"),
    "softmax-query-axis": (MODEL, WEIGHTS, ALONG.format("-2")),
    "softmax-whole-array": (MODEL, WEIGHTS, "weights = softmax(scores.flatten()).reshape(scores.shape)"),
    "causal-in-encoder": (
        MODEL, "self.self_attention(y, y, y, mask)", f"self.self_attention(y, y, y, {CAUSAL.format('y', 'mask')})",
    ),
    "causal-in-cross": (MODEL, DECODED, DECODED.replace("memory_mask", CAUSAL.format("memory", "memory_mask"))),
    "cross-masks-swapped": (MODEL, ATTENDED, f"self_mask, memory_mask = memory_mask, self_mask\n        {ATTENDED}"),
    "cross-uses-tgt-mask": (MODEL, DECODED, DECODED.replace("memory_mask", "self_mask")),
    "tied-logit-scale": (
        MODEL, SCORED, f"{SCORED} / decoded.shape[-1] ** 0.5",
        VARIANTS, "logits = affine(x, w_vocab, b_vocab)", "logits = affine(x, w_vocab, b_vocab) / x.shape[-1] ** 0.5",
    ),
}  # fmt: skip

#: Autograd cannot make these. tests/conformance/diagnosis/mistakes/mistakes.json holds their numbers.
BY_HAND = {"ln-bwd-rank", "emb-bwd-overwrite"}

#: It shows in float16 only, and these tests compute in float64.
OF_HALF_TYPES = {"rms-half-precision"}

EDITS = {**BACKWARD, **FORWARD}


def find_conventions(mistake):
    """Return the options under which a mistake is one, and with which `kills` were measured."""
    made = implementations().get(mistake)
    return getattr(made.make(), "CONVENTIONS", {}) if made else {}


@pytest.mark.sample(2)
@pytest.mark.parametrize("mistake", EDITS)
def test_every_gradient_case_catches_what_it_claims(mistake, broken_reference, spec):
    adapter = find_adapter(broken_reference(*EDITS[mistake]), spec)
    claimed = [case for case in spec.cases.values() if case.cotangent is not None and mistake in case.kills]
    # Some need a declaration that the reference supports, such as a tied output layer. A case that may be called under
    # several options claims a mistake under those of the mistake.
    own = {**adapter.conventions, **find_conventions(mistake)}
    declared = [replace(adapter, conventions={**own, **(case.only_with or {})}) for case in claimed]
    benches = [Bench(spec, one, "float64", "cpu", Policy(require_precision=True)) for one in declared]
    verdicts = [check_case(case, bench) for case, bench in zip(claimed, benches, strict=True)]
    judged = [v for v in verdicts if v.status is not Status.SKIPPED]
    assert judged
    assert [v.check for v in judged if not v.bad] == []
    # Beyond all rounding, where there is a number to measure at all: a call may also raise.
    assert all(v.reason in ("not-finite", "no-gradient") or v.ratio is None or v.ratio > 1000 for v in judged)


@pytest.mark.sample(2)
@pytest.mark.parametrize("mistake", [id_ for id_ in EDITS if id_ in implementations()])
def test_the_textbook_with_the_mistake_gives_what_the_reference_with_it_gives(mistake, broken_reference, spec):
    edited = find_adapter(broken_reference(*EDITS[mistake]), spec)
    declared = find_conventions(mistake)
    edited = replace(edited, conventions={**edited.conventions, **declared})
    options = (OPTIONS[item] for item in declared.items() if item in OPTIONS)
    book = build_textbook(*options, implementations()[mistake].steps, CONVENTIONS=declared)
    made = Adapter.from_object(book, mistake, spec)
    compared = 0
    for whole in spec.cases.values():
        # Both have the conventions of the mistake, and else the default ones.
        if whole.cotangent is None or mistake not in whole.kills or "zeros" in whole.only_with.values():
            continue
        contract = spec.contracts[whole.component]
        case = whole.under(edited.options(whole.component, spec))
        wanted = contract.results_of(case)
        call = (contract, read_arguments(case), case.cotangent_array)
        try:
            textbook = invoke_gradient(made, *call, wanted, "float64", "cpu").outputs
        except BadResult:
            # A mask of the wrong shape stops both.
            with pytest.raises(BadResult, match="raised"):
                invoke_gradient(edited, *call, wanted, "float64", "cpu")
            compared += 1
            continue
        try:
            written = invoke_gradient(edited, *call, wanted, "float64", "cpu").outputs
        except BadResult as bad:
            if str(bad).startswith("backward raised"):
                # Autograd takes no gradient of an output that has another shape.
                compared += 1
                continue
            # What is not read has no gradient in autograd, and one of 0 in mathematics.
            unread = str(bad).removeprefix("no gradient reaches ").partition(":")[0].split(", ")
            assert all((textbook[name] == 0).all() for name in unread)
            wanted = {name: spec_ for name, spec_ in wanted.items() if name not in unread}
            written = invoke_gradient(edited, *call, wanted, "float64", "cpu").outputs
        for name, gradient in written.items():
            # At a kink, such as the root of 0, autograd gives NaN where reverse mode takes a side.
            told = np.isfinite(gradient) | (mistake in BACKWARD)
            size = np.abs(gradient[np.isfinite(gradient)]).max(initial=1)
            got, expected = textbook[name][told], gradient[told]
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-11 * size, err_msg=f"{case.id} {name}")
            compared += 1
    assert compared


@pytest.mark.parametrize("mistake", ["layer-bwd", "memory-bwd"])
def test_what_autograd_does_not_reach_is_named_as_what_arithmetic_makes_0(mistake, broken_reference, spec):
    bench = Bench(spec, find_adapter(broken_reference(*EDITS[mistake]), spec), "float32", "cpu")
    verdict, found = Diagnosis(spec).explain(judge_case(spec.cases["tf-gradient"], bench))
    assert verdict.reason == "no-gradient"
    assert [match.causes for match in found.matches] == [(mistake,)]


def test_a_cut_that_is_in_no_catalogue_has_no_name(broken_reference, spec):
    edit = (
        MODEL,
        "attended, self.norm_2, lambda y: self.cross",
        "attended.detach(), self.norm_2, lambda y: self.cross",
    )
    bench = Bench(spec, find_adapter(broken_reference(*edit), spec), "float32", "cpu")
    verdict, found = Diagnosis(spec).explain(judge_case(spec.cases["decs-gradient"], bench))
    assert (verdict.reason, found.matches) == ("no-gradient", ())


@pytest.mark.sample(10)
@pytest.mark.parametrize("mistake", BACKWARD)
def test_a_backward_mistake_leaves_the_values_right(mistake, broken_reference, spec):
    adapter = find_adapter(broken_reference(*EDITS[mistake]), spec)
    bench = Bench(spec, adapter, "float64", "cpu")
    claimed = {case.component for case in spec.cases.values() if case.cotangent is not None and mistake in case.kills}
    for component in claimed:
        plain = [case for case in spec.cases_of(component) if case.golden and case.cotangent is None]
        verdicts = [check_case(case, bench) for case in itertools.islice(plain, 3)]
        assert not [f"{v.check}: {v.message}" for v in verdicts if v.bad]


def test_every_mistake_that_a_gradient_case_claims_is_tried(spec):
    claimed = {mistake for case in spec.cases.values() if case.cotangent is not None for mistake in case.kills}
    assert claimed == EDITS.keys() | BY_HAND | OF_HALF_TYPES


#: Conventions of what comes after the last feed-forward network.
_AFTER = {"final_norm", "output_layer"}


@pytest.fixture
def inner_layers():
    """Record the inputs of the ReLU of every feed-forward network while a formula runs."""
    seen = []

    def recording(original, x, params, role):
        inner = original(x, params, role)
        if role == "1":
            seen.append(inner)
        return inner

    with replacing({project: around(recording)}):
        yield seen


def list_with_hidden_units(spec):
    """Return the gradient cases that run through a feed-forward network."""
    gradients = [case for case in spec.cases.values() if case.cotangent is not None]
    return [case for case in gradients if any(name.endswith("w_1") for name in case.params)]


#: The components of these cases.
HAVE_HIDDEN_UNITS = ("decoder", "decoder_layer", "encoder", "encoder_layer", "feed_forward", "transformer")


def test_the_components_with_hidden_units_are_these(spec):
    assert {case.component for case in list_with_hidden_units(spec)} == {*HAVE_HIDDEN_UNITS}


@pytest.mark.sample(3)
@pytest.mark.parametrize("component", HAVE_HIDDEN_UNITS)
def test_no_hidden_unit_can_change_its_sign_by_rounding(component, spec, inner_layers):
    """The ReLU has no gradient at 0: a unit within the tolerance of it would go either way in bfloat16."""
    for case in list_with_hidden_units(spec):
        if case.component != component:
            continue
        # What comes after the last network says nothing of its hidden units.
        first = {name: case.conventions[name][:1] for name in _AFTER & case.conventions.keys()}
        for options in case.combine_options(first):
            inner_layers.clear()
            Draw.reset()
            called = case.under(options)
            call = (called.input_arrays, called.param_arrays, called.attributes, options)
            evaluate(called.component, Draw.exact, Draw.read, *call)
            assert inner_layers
            for inner in inner_layers:
                units = inner.ravel()
                middle = np.array([np.mean(draw.samples) for draw in units])
                scales = [error_scale(units[[i]], middle[[i]]) for i in range(len(units))]
                bound = np.array([tolerance("bfloat16", s, abs(m)) for s, m in zip(scales, middle, strict=True)])
                # Exactly 0 whatever rounds, and the subject of GRAD-4.
                corner = np.array([not np.any(draw.samples) for draw in units])
                assert corner.any() == ("GRAD-4" in case.clauses)
                assert (np.abs(middle) > bound)[~corner].all(), f"{case.id} {options}"
