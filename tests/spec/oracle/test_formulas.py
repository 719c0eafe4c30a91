"""The formulas in balls against loops written from the clauses: at 50 digits on small inputs, in float64 on all."""

from __future__ import annotations

import math
from types import SimpleNamespace

import flint
import mpmath
import numpy as np
import pytest

from goldformer.conformance.judging.tolerance import tolerance
from goldformer.spec import ROOT, Spec
from goldformer.spec.oracle import balls
from goldformer.spec.oracle.derive import FORMULAS, GAPS, choose_options, evaluate

#: Two kinds of number for one set of loops. In float64 the largest score is taken off first (SM-3).
EXACT = SimpleNamespace(
    number=lambda v: mpmath.mpf(repr(v)), exp=mpmath.exp, sqrt=mpmath.sqrt, sin=mpmath.sin, cos=mpmath.cos,
    power=mpmath.power, nan=mpmath.nan, top=lambda row: 0, erf=mpmath.erf, tanh=mpmath.tanh, pi=lambda: +mpmath.pi,
    log=mpmath.log,
)  # fmt: skip
FLOAT = SimpleNamespace(
    number=float, exp=math.exp, sqrt=math.sqrt, sin=math.sin, cos=math.cos, power=math.pow, nan=math.nan,
    top=lambda row: max(row, default=0.0), erf=math.erf, tanh=math.tanh, pi=lambda: math.pi,
    log=math.log,
)  # fmt: skip


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(50):
        yield


# ── the clauses in loops ──


def empty(*shape):
    return np.full(shape, None, dtype=object)


def allowed(mask, index):
    """MASK-6: aligned at the last axes; an axis of 1 or a missing one stands for all indices."""
    if mask is None:
        return True
    own = index[len(index) - mask.ndim :]
    return bool(mask[tuple(0 if size == 1 else k for k, size in zip(own, mask.shape, strict=True))])


def distribution(m, row, keep, empty_row):
    """SM-1, SDPA-6, SDPA-7: one row of weights."""
    if not any(keep):
        return [{"uniform": m.number(1) / len(row), "zeros": m.number(0), "nan": m.nan}[empty_row]] * len(row)
    top = m.top([s for s, k in zip(row, keep, strict=True) if k])
    powers = [m.exp(s - top) if k else m.number(0) for s, k in zip(row, keep, strict=True)]
    return [p / sum(powers) for p in powers]


def softmax(m, scores):
    output = empty(*scores.shape)
    for lead in np.ndindex(scores.shape[:-1]):
        output[lead] = distribution(m, list(scores[lead]), [True] * scores.shape[-1], "uniform")
    return {"output": output}


def scaled_dot_product_attention(m, query, key, value, mask=None, empty_row="uniform", dropout_rate=0, seed=0):
    (*lead, q_seq, d_k), kv_seq, d_v = query.shape, key.shape[-2], value.shape[-1]
    out = {"scores": empty(*lead, q_seq, kv_seq), "scaled_scores": empty(*lead, q_seq, kv_seq)}
    out |= {"weights": empty(*lead, q_seq, kv_seq), "output": empty(*lead, q_seq, d_v)}
    for place in np.ndindex(*lead, q_seq):
        b, i = place[:-1], place[-1]
        dots = [sum(query[(*b, i, t)] * key[(*b, j, t)] for t in range(d_k)) for j in range(kv_seq)]
        scaled = [dot / m.sqrt(m.number(d_k)) for dot in dots]
        weights = distribution(m, scaled, [allowed(mask, (*b, i, j)) for j in range(kv_seq)], empty_row)
        out["scores"][place], out["scaled_scores"][place], out["weights"][place] = dots, scaled, weights
        kept = [unless_dropped(m, weight, dropout_rate) for weight in weights]
        out["output"][place] = [sum(kept[j] * value[(*b, j, c)] for j in range(kv_seq)) for c in range(d_v)]
    return out


def adjusted_attention(m, query, key, value, mask, empty_row, bias, sink, scale, softcap):
    """SCORE-1 to SCORE-4: one query head of all samples, with what a call says of its scores."""
    times = m.number(1) / m.sqrt(m.number(query.shape[-1])) if scale is None else m.number(scale)
    scores = np.array([[[sum(a * b for a, b in zip(q, k, strict=True)) for k in ks] for q in qs]
                       for qs, ks in zip(query, key, strict=True)], dtype=object)  # fmt: skip
    scaled, weights = scores * times, empty(*scores.shape)
    for b, i in np.ndindex(*scores.shape[:2]):
        row = [s if softcap is None else m.tanh(s / m.number(softcap)) * m.number(softcap) for s in scaled[b, i]]
        row = row if bias is None else [s + bias[i, j] for j, s in enumerate(row)]
        keep = [allowed(mask, (b, i, j)) for j in range(len(row))]
        all_, seen = (row, keep) if sink is None else ([*row, sink], [*keep, True])
        weights[b, i] = distribution(m, all_, seen, empty_row)[: len(row)]
    output = empty(*scores.shape[:2], value.shape[-1])
    for b, i, c in np.ndindex(*output.shape):
        output[b, i, c] = sum(w * v for w, v in zip(weights[b, i], value[b, :, c], strict=True))
    return {"output": output, "weights": weights, "scores": scores, "scaled_scores": scaled}


def normalise_heads(m, heads, gamma, *options):
    """QKN-1: each token of each head is a row of its own."""
    out = heads if gamma is None else empty(*heads.shape)
    for place in np.ndindex(heads.shape[:3] if gamma is not None else (0,)):
        out[place] = rms_row(m, heads[place], gamma, *(options or ("1e-6", "inside", "w")))
    return out


def grouped_query_attention(
    m, query, key, value, mask=None, bias=None, sinks=None, gamma_q=None, gamma_k=None, scale=None, softcap=None,
    empty_row="uniform", gqa_groups="interleave", rms_norm_eps="1e-6", rms_norm_eps_place="inside", rms_norm_weight="w",
):  # fmt: skip
    """GQA-1, GQA-3: each query head by itself, with the keys and values that it reads."""
    norm = rms_norm_eps, rms_norm_eps_place, rms_norm_weight
    query, key = normalise_heads(m, query, gamma_q, *norm), normalise_heads(m, key, gamma_k, *norm)
    (batch, heads), kv_heads = query.shape[:2], key.shape[1]
    out = None
    for h in range(heads):
        g = h % kv_heads if gqa_groups == "tile" else h // (heads // kv_heads)
        own = mask_of_head(mask, h)
        said = (None if bias is None else bias[h], None if sinks is None else sinks[h], scale, softcap)
        attended = adjusted_attention(m, query[:, h], key[:, g], value[:, g], own, empty_row, *said)
        out = out or {name: empty(batch, heads, *array.shape[1:]) for name, array in attended.items()}
        for name, array in attended.items():
            out[name][:, h] = array
    return out


def cached_attention(m, query, key, value, calls, mask=None, after=None, gqa_groups="interleave"):
    """CACHE-1: each token by itself, with the tokens that came before it in its sequence."""
    output = empty(*query.shape[:-1], value.shape[-1])
    for token, seen in enumerate(tokens_so_far(calls, after)):
        own = None if mask is None else mask[..., seen]
        one = grouped_query_attention(
            m, query[:, :, [token]], key[:, :, seen], value[:, :, seen], own, gqa_groups=gqa_groups
        )
        output[:, :, [token]] = one["output"]
    return {"output": output}


def tokens_so_far(calls, after=None):
    """For each token of a session, those of its sequence up to itself."""
    after, ends = range(len(calls)) if after is None else after, np.cumsum(calls)
    for number, new in enumerate(calls):
        before, earlier = after[number], []
        while before:
            earlier = [*range(ends[before - 1] - calls[before - 1], ends[before - 1]), *earlier]
            before = after[before - 1]
        for token in range(ends[number] - new, ends[number]):
            yield [*earlier, *range(ends[number] - new, token + 1)]


def unless_dropped(m, x, rate):
    """DROP-1: what an element is when chance keeps it."""
    return m.number(0) if rate == 1 else x / (1 - m.number(rate))


def dropout(m, x, rate, training, seed):
    return {"output": np.vectorize(lambda v: unless_dropped(m, v, rate if training else 0), otypes=[object])(x)}


def xavier_uniform(m, like, seed):
    weight = np.full(like.shape, m.sqrt(m.number(6) / sum(like.shape)), dtype=object)
    return {"weight": weight, "bias": np.full(like.shape[1], m.number(0), dtype=object)}


def causal_mask(m, q_seq, kv_seq, causal_corner="top_left"):
    shift = {"top_left": 0, "bottom_right": kv_seq - q_seq}[causal_corner]
    return {"mask": np.array([[j <= i + shift for j in range(kv_seq)] for i in range(q_seq)])}


def sliding_window_mask(m, q_seq, kv_seq, window, causal_corner="top_left", window_size="with_oneself"):
    """WIN-1, WIN-2: the last keys up to the position of the query."""
    shift = {"top_left": 0, "bottom_right": kv_seq - q_seq}[causal_corner]
    length = {"with_oneself": window, "before_oneself": window + 1}[window_size]
    seen = [range(i + shift - length + 1, i + shift + 1) for i in range(q_seq)]
    return {"mask": np.array([[j in keys for j in range(kv_seq)] for keys in seen])}


def alibi_bias(m, like, causal_corner="top_left", alibi_slopes="nearest_power", alibi_form="difference"):
    """ALIBI-1 to ALIBI-4: head by head."""
    heads, q_seq, kv_seq = like.shape
    shift = {"top_left": 0, "bottom_right": kv_seq - q_seq}[causal_corner]
    power = max(n for n in range(1, heads + 1) if n & (n - 1) == 0)
    bias = empty(heads, q_seq, kv_seq)
    for h, i, j in np.ndindex(*bias.shape):
        if alibi_slopes == "geometric":
            exponent = m.number(8) * (h + 1) / heads
        else:
            exponent = m.number(8) * ((h + 1) if h < power else (2 * (h - power) + 1) / m.number(2)) / power
        behind = i + shift - j
        times = {"difference": behind, "absolute": abs(behind), "key_index": -j, "from_last_key": kv_seq - 1 - j}
        bias[h, i, j] = -times[alibi_form] / m.power(m.number(2), exponent)
    return {"bias": bias}


def position_ids(m, mask, padded_position="one"):
    """POS-1, POS-2: each place by itself."""
    positions = np.empty(mask.shape, dtype=np.int64)
    for b, t in np.ndindex(*mask.shape):
        counted = sum(map(bool, mask[b, : t + 1])) - 1
        padded = {"one": 1, "zero": 0, "counted": counted, "clamped": max(counted, 0)}
        positions[b, t] = counted if mask[b, t] else padded[padded_position]
    return {"positions": positions}


def padding_mask(m, ids, pad_id):
    return {"mask": np.array([[[[int(id_) != pad_id for id_ in row]]] for row in ids])}


def token_embedding(m, ids, table, pad_id=None, embedding_scale="none", pad_row="learned"):
    del pad_id, pad_row  # they change gradients alone
    factor = m.sqrt(m.number(table.shape[1])) if embedding_scale == "sqrt_d_model" else 1
    output = empty(*ids.shape, table.shape[1])
    for place in np.ndindex(ids.shape):
        output[place] = [x * factor for x in table[ids[place]]]
    return {"output": output}


def positional_encoding(
    m, x, pe_layout="interleaved", odd_d_model="extra_sine", dropout_rate=0, training=True, seed=0
):  # fmt: skip
    _, seq, d = x.shape
    table = empty(seq, d)
    for pos, c in np.ndindex(seq, d):
        if pe_layout == "interleaved":
            i, wave = c // 2, m.cos if c % 2 else m.sin
        else:
            i, wave = c % (d // 2), m.sin if c < d // 2 else m.cos
        bottom = max(d // 2 - 1, 1) if pe_layout == "tensor2tensor" else d
        top = i if pe_layout == "tensor2tensor" else 2 * i
        table[pos, c] = wave(m.number(pos) * m.power(m.number(10000), -m.number(top) / bottom))
        if odd_d_model == "zero" and d % 2 and c == d - 1:
            table[pos, c] = m.number(0)  # PE-7: the last channel has no pair
    return dropout(m, x + table, dropout_rate, training, seed)


def scaled_frequency(m, i, r, base, factor, length, how):
    """ROPE-11: the bands by wavelengths, and the ramp between two pairs."""
    frequency = 1 / m.power(base, m.number(2 * i) / r)
    if factor is None:
        return frequency
    factor, wavelength = m.number(factor), 2 * m.pi() / frequency
    first, last = {"linear": (math.inf, math.inf), "llama3": (1, 4), "yarn_by_turns": (1, 32)}.get(how, (0, 0))
    if not last:
        ends = [r / 2 * m.log(length / (2 * m.pi() * turns)) / m.log(base) for turns in (32, 1)]
        if how == "yarn":
            assert all(0.005 < end % 1 < 0.995 for end in ends), "rounding would decide where the ramp begins or ends"
            ends = [math.floor(ends[0]), math.ceil(ends[1])]
        low, high = max(ends[0], 0), min(ends[1], r - 1)
        if i <= low:
            return frequency
        return frequency / factor if i >= high else frequency * ((high - i) + (i - low) / factor) / (high - low)
    if how == "linear" or wavelength > length / m.number(first):
        return frequency / factor
    if wavelength < length / m.number(last):
        return frequency
    smooth = (length / wavelength - first) / (last - first)
    return (1 - smooth) * frequency / factor + smooth * frequency


def rotary_embedding(
    m, x, positions, base=None, rotary_width=None, scaling_factor=None, original_length=None,
    rope_pairing="interleaved", rope_direction="positive", rope_scaling="linear",
):  # fmt: skip
    output, r = x.copy(), rotary_width or x.shape[-1]
    base = m.number(10000 if base is None else base)
    size = 1 + m.log(m.number(scaling_factor)) / 10 if scaling_factor and "yarn" in rope_scaling else 1
    for place in np.ndindex(x.shape[:-1]):
        own = place[len(place) - positions.ndim :]
        position = int(positions[tuple(0 if size == 1 else k for k, size in zip(own, positions.shape, strict=True))])
        for i in range(r // 2):
            c, d = (i, i + r // 2) if rope_pairing == "half" else (2 * i, 2 * i + 1)
            angle = position * scaled_frequency(m, i, r, base, scaling_factor, original_length, rope_scaling)
            cosine, sine = size * m.cos(angle), size * m.sin(-angle if rope_direction == "negative" else angle)
            first, second = x[(*place, c)], x[(*place, d)]
            output[(*place, c)], output[(*place, d)] = first * cosine - second * sine, second * cosine + first * sine
    return {"output": output}


def token_filter(
    m, logits, previous=None, temperature=1, top_k=None, top_p=1, min_p=0, repetition_penalty=1,
    sample_order="temperature_first", sample_ties="exactly_k", temperature_zero="greedy",
):  # fmt: skip
    """SAMPLE-1 … SAMPLE-9, a row at a time: the tokens that are left, and what they weigh."""
    output, penalty = np.full(logits.shape, m.number(0), dtype=object), m.number(repetition_penalty)
    for row, own in enumerate(logits):
        z = list(own)
        for token in set() if previous is None else set(previous[row].tolist()):
            z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
        heat = m.number(temperature) if temperature and sample_order == "temperature_first" else m.number(1)
        left = sorted(range(len(z)), key=lambda token: (-z[token], token))
        if top_k is not None:
            least = z[left[min(top_k, len(z)) - 1]]
            left = [t for t in left if z[t] >= least] if sample_ties == "all_equal" else left[:top_k]
        if top_p < 1:
            weights, kept = distribution(m, [z[t] / heat for t in left], [True] * len(left), ""), 1
            while sum(weights[:kept]) < m.number(top_p):
                kept += 1
            left = left[:kept]
        left = [t for t in left if m.exp((z[t] - z[left[0]]) / heat) >= m.number(min_p)]
        if temperature == 0:
            left = left[:1]
        final = [z[t] / m.number(temperature or 1) for t in left]
        output[row, left] = distribution(m, final, [True] * len(left), "")
    return {"probabilities": output}


def expert_router(m, x, top_k, w_router, moe_weights="renormalised"):
    logits, weights = project(x, w_router), np.full((len(x), w_router.shape[1]), m.number(0), dtype=object)
    for token, row in enumerate(logits):
        chosen = sorted(range(len(row)), key=lambda e: -row[e])[:top_k]
        scores = [1 / (1 + m.exp(-z)) if moe_weights == "sigmoid" else m.exp(z - max(row)) for z in row]
        total = sum(scores) if moe_weights == "not_renormalised" else sum(scores[e] for e in chosen)
        for e in chosen:
            weights[token, e] = scores[e] / total
    return {"weights": weights, "logits": logits}


def expert_feed_forward(
    m, x, num_experts, top_k, w_router, moe_weights="renormalised", gate_activation="silu", **params
):
    """MOE-6, MOE-7: expert by expert, the weighted outputs of the chosen ones."""
    routed = expert_router(m, x.reshape(-1, x.shape[-1]), top_k, w_router, moe_weights)
    weights, logits = (routed[name].reshape(*x.shape[:-1], num_experts) for name in ("weights", "logits"))
    output = np.full(x.shape, m.number(0), dtype=object)
    for index in range(num_experts):
        own = {name: params[f"experts.{index}.{name}"] for name in GATED if f"experts.{index}.{name}" in params}
        expert = gated_feed_forward(m, x, gate_activation=gate_activation, **own)["output"]
        for place in np.ndindex(*x.shape):
            output[place] += weights[(*place[:-1], index)] * expert[place]
    return {"output": output, "weights": weights, "logits": logits}


def project(x, w, b=None, columns=None):
    """x·W + b, of some columns only."""
    columns = range(w.shape[1]) if columns is None else columns
    output = empty(*x.shape[:-1], len(columns))
    for place in np.ndindex(*x.shape[:-1]):
        for k, c in enumerate(columns):
            y = sum(x[place][r] * w[r, c] for r in range(w.shape[0]))
            output[(*place, k)] = y if b is None else y + b[c]
    return output


def joined(m, heads, w_o, b_o):
    """MHA-4: head 0 first, side by side, token by token, then W_O."""
    width = heads[0]["output"].shape[-1]
    wide = empty(*heads[0]["output"].shape[:2], len(heads) * width)
    for j, head in enumerate(heads):
        wide[:, :, j * width : (j + 1) * width] = head["output"]
    steps = {}
    for name in ("weights", "q", "k", "v", "scaled_scores", "output"):
        steps[name] = empty(wide.shape[0], len(heads), *heads[0][name].shape[1:])
        for j, head in enumerate(heads):
            steps[name][:, j] = head[name]
    steps["average_weights"] = empty(*np.delete(steps["weights"].shape, 1))
    for b, i, k in np.ndindex(steps["average_weights"].shape):
        steps["average_weights"][b, i, k] = sum(steps["weights"][b, j, i, k] for j in range(len(heads))) / len(heads)
    return {**steps, "heads": steps["output"], "output": project(wide, w_o, b_o)}


def mask_of_head(mask, j):
    """Return the part of [batch, heads, q_seq, kv_seq] for one head."""
    return mask if mask is None or mask.ndim < 3 else mask[..., j if mask.shape[-3] > 1 else 0, :, :]


def multi_head_attention(
    m, query, key, value, mask=None, *, num_heads, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None,
    empty_row="uniform", dropout_rate=0, training=True, seed=0,
):  # fmt: skip
    d_k, d_v = w_q.shape[1] // num_heads, w_v.shape[1] // num_heads
    heads = []
    for j in range(num_heads):
        own_k, own_v = range(j * d_k, (j + 1) * d_k), range(j * d_v, (j + 1) * d_v)
        q, k, v = project(query, w_q, b_q, own_k), project(key, w_k, b_k, own_k), project(value, w_v, b_v, own_v)
        rate = dropout_rate if training else 0
        attended = scaled_dot_product_attention(m, q, k, v, mask_of_head(mask, j), empty_row, rate)
        heads.append({**attended, "q": q, "k": k, "v": v})
    return joined(m, heads, w_o, b_o)


def fused_multi_head_attention(
    m, x, mask=None, *, num_heads, w_qkv, w_o, b_qkv=None, b_o=None, empty_row="uniform",
    dropout_rate=0, training=True, seed=0,
):  # fmt: skip
    d_k = w_qkv.shape[1] // num_heads // 3
    heads = []
    for j in range(num_heads):
        q, k, v = (project(x, w_qkv, b_qkv, range((3 * j + part) * d_k, (3 * j + part + 1) * d_k)) for part in range(3))
        rate = dropout_rate if training else 0
        attended = scaled_dot_product_attention(m, q, k, v, mask_of_head(mask, j), empty_row, rate)
        heads.append({**attended, "q": q, "k": k, "v": v})
    return {**joined(m, heads, w_o, b_o), "qkv": project(x, w_qkv, b_qkv)}


def single_head_attention(m, x, causal, w_q, w_k, w_v):
    query, key, value = project(x, w_q), project(x, w_k), project(x, w_v)
    mask = causal_mask(m, len(x), len(x))["mask"] if causal else None
    out = scaled_dot_product_attention(m, query, key, value, mask)
    return {**{k: out[k] for k in ("output", "weights", "scores")}, "query": query, "key": key, "value": value}


def single_head_attention_step(m, x, output_gradient, causal, learning_rate, steps, w_q, w_k, w_v):
    """By the chain rule through single weights: every derivative is a sum over what a number moves."""
    seq, d = x.shape
    rate = m.number(learning_rate)
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v}
    for _ in range(steps):
        f = single_head_attention(m, x, causal, **weights)
        p = f["weights"]
        by_weight = empty(seq, seq)
        for i, j in np.ndindex(seq, seq):
            by_weight[i, j] = sum(output_gradient[i, c] * f["value"][j, c] for c in range(d))
        # A weight's derivative by a score of its row: P_j·(1 − P_j) by its own, −P_j·P_k by another's.
        by_score = empty(seq, seq)
        for i, k in np.ndindex(seq, seq):
            moves = [p[i, j] * ((1 if j == k else 0) - p[i, k]) for j in range(seq)]
            by_score[i, k] = sum(by_weight[i, j] * moves[j] for j in range(seq)) / m.sqrt(m.number(d))
        by = {name: empty(seq, d) for name in weights}
        for t, c in np.ndindex(seq, d):
            by["w_q"][t, c] = sum(by_score[t, j] * f["key"][j, c] for j in range(seq))
            by["w_k"][t, c] = sum(by_score[i, t] * f["query"][i, c] for i in range(seq))
            by["w_v"][t, c] = sum(p[i, t] * output_gradient[i, c] for i in range(seq))
        x_gradient, moved = empty(seq, d), {name: empty(d, d) for name in weights}
        for t, r in np.ndindex(seq, d):
            x_gradient[t, r] = sum(by[name][t, c] * weights[name][r, c] for name in weights for c in range(d))
        for name in weights:
            for r, c in np.ndindex(d, d):
                moved[name][r, c] = weights[name][r, c] - rate * sum(x[t, r] * by[name][t, c] for t in range(seq))
        weights = moved
    return {"x_gradient": x_gradient, **weights}


def activate(m, x, gate_activation):
    """GLU-3: one gate."""
    if gate_activation == "relu":
        return x if x > 0 else m.number(0)
    if gate_activation == "silu":
        return x / (1 + m.exp(-x))
    inner = (x + m.number(44715) / 10**6 * x**3) * m.sqrt(2 / m.pi())
    return x / 2 * (1 + (m.tanh(inner) if gate_activation == "gelu_tanh" else m.erf(x / m.sqrt(m.number(2)))))


def gated_feed_forward(
    m, x, w_gate, w_up, w_down, b_gate=None, b_up=None, b_down=None, gate_activation="silu"
):  # fmt: skip
    gate, up = project(x, w_gate, b_gate), project(x, w_up, b_up)
    hidden = empty(*gate.shape)
    for place in np.ndindex(hidden.shape):
        hidden[place] = activate(m, gate[place], gate_activation) * up[place]
    return {"output": project(hidden, w_down, b_down), "hidden": hidden, "gate": gate, "up": up}


def rms_row(m, row, gamma, rms_norm_eps, rms_norm_eps_place, rms_norm_weight):
    """RMS-1, RMS-3 … RMS-5: one row."""
    eps = m.number(1) / {"1e-6": 10**6, "1e-5": 10**5, "float32_eps": 2**23}[rms_norm_eps]
    square = sum(x * x for x in row) / len(row)
    root = m.sqrt(square) + eps if rms_norm_eps_place == "outside" else m.sqrt(square + eps)
    return [x / root * (g + (1 if rms_norm_weight == "one_plus_w" else 0)) for x, g in zip(row, gamma, strict=True)]


def decoder_only_layer(
    m, x, num_heads, num_kv_heads, mask=None, base=None, block_order="pre", rms_norm_eps="1e-6",
    rms_norm_eps_place="inside", rms_norm_weight="w", rope_pairing="interleaved", rope_direction="positive",
    gqa_groups="interleave", gate_activation="silu", window=None, scale=None, softcap=None, window_size="with_oneself",
    empty_row="uniform", **params,
):  # fmt: skip
    """BLOCK-1 … BLOCK-9: norms row by row, heads column by column."""
    (batch, seq, _), d_k = x.shape, params["w_q"].shape[1] // num_heads

    norm = (rms_norm_eps, rms_norm_eps_place, rms_norm_weight)

    def normalise(rows, name):
        out = empty(*rows.shape)
        for place in np.ndindex(rows.shape[:2]):
            out[place] = rms_row(m, rows[place], params[f"{name}.gamma"], *norm)
        return out

    def heads_of(rows, role, count):
        columns = project(rows, params[f"w_{role}"], params.get(f"b_{role}"))
        return np.stack([columns[..., h * d_k : (h + 1) * d_k] for h in range(count)], axis=1)

    def turn(heads, gamma):
        heads = normalise_heads(m, heads, gamma, *norm)
        turned = {"rope_pairing": rope_pairing, "rope_direction": rope_direction}
        return rotary_embedding(m, heads, np.arange(seq), base, **turned)["output"]

    h = normalise(x, "norm_1")
    near = np.full((seq, seq), fill_value=True)
    if window is not None:
        near = sliding_window_mask(m, seq, seq, window, window_size=window_size)["mask"]
    seen = np.array(
        [
            [[j <= i and near[i, j] and allowed(mask, (b, 0, i, j)) for j in range(seq)] for i in range(seq)]
            for b in range(batch)
        ]
    )
    attended = grouped_query_attention(
        m, turn(heads_of(h, "q", num_heads), params.get("gamma_q")),
        turn(heads_of(h, "k", num_kv_heads), params.get("gamma_k")), heads_of(h, "v", num_kv_heads),
        seen[:, None], empty_row=empty_row, gqa_groups=gqa_groups, scale=scale, softcap=softcap,
    )  # fmt: skip
    joined = np.concatenate([attended["output"][:, head] for head in range(num_heads)], axis=-1)
    update = project(joined, params["w_o"], params.get("b_o"))
    a = x + (normalise(update, "post_norm_1") if block_order == "sandwich" else update)
    mine = {name.removeprefix("feed_forward."): w for name, w in params.items() if name.startswith("feed_forward.")}
    read = h if block_order == "parallel" else normalise(a, "norm_2")
    fed = gated_feed_forward(m, read, **mine, gate_activation=gate_activation)["output"]
    output = a + (normalise(fed, "post_norm_2") if block_order == "sandwich" else fed)
    return {"output": output, "attended": a, "weights": attended["weights"]}


def decoder_only_model(
    m, ids, num_heads, num_kv_heads, num_layers, table, base=None, pad_id=None, embedding_scale="none",
    output_layer="separate", window=None, local_base=None, logit_softcap=None, local_layers="every", **rest,
):  # fmt: skip
    """LM-1 … LM-8: layer by layer."""
    params = {name: rest.pop(name) for name in [name for name in rest if isinstance(rest[name], np.ndarray)]}
    embedded = x = token_embedding(m, ids, table, embedding_scale=embedding_scale)["output"]
    mask = None if pad_id is None else padding_mask(m, ids, pad_id)["mask"]
    for index in range(num_layers):
        start = f"layers.{index}."
        own = {name.removeprefix(start): w for name, w in params.items() if name.startswith(start)}
        is_global = {"every": False, "every_second": index % 2 == 1, "five_of_six": index in (5, 11)}[local_layers]
        theta, reach = (base, None) if is_global else (local_base or base, window)
        x = decoder_only_layer(m, x, num_heads, num_kv_heads, mask, theta, window=reach, **own, **rest)["output"]
    norm = [{"rms_norm_eps": "1e-6", "rms_norm_eps_place": "inside", "rms_norm_weight": "w", **rest}[name]
            for name in ("rms_norm_eps", "rms_norm_eps_place", "rms_norm_weight")]  # fmt: skip
    decoded = empty(*x.shape)
    for place in np.ndindex(x.shape[:2]):
        decoded[place] = rms_row(m, x[place], params["norm.gamma"], *norm)
    tied = output_layer.startswith("tied") or "w_vocab" not in params
    logits = project(decoded, table.T if tied else params["w_vocab"])
    if logit_softcap is not None:
        logits = np.frompyfunc(lambda z: logit_softcap * m.tanh(z / logit_softcap), 1, 1)(logits)
    return {"logits": logits, "decoded": decoded, "embedded": embedded}


def cached_model(m, ids, calls, after=None, **model):
    """LMC-1: each token is the last of a text that the model without a cache reads."""
    last = [decoder_only_model(m, ids[:, seen], **model)["logits"][:, -1] for seen in tokens_so_far(calls, after)]
    logits = empty(*ids.shape, last[0].shape[-1])
    for token, row in enumerate(last):
        logits[:, token] = row
    return {"logits": logits}


def generate(m, ids, eos_id, max_new_tokens, pad_id=None, **model):
    """GEN-1 … GEN-4: one sample after the other, and for each token the model reads all of it again."""
    new_ids = np.full((len(ids), max_new_tokens), eos_id if pad_id is None else pad_id)
    for sample, prompt in enumerate(ids.tolist()):
        for place in range(max_new_tokens):
            text = [*prompt, *new_ids[sample, :place]]
            logits = decoder_only_model(m, np.array([text]), pad_id=pad_id, **model)["logits"][0, -1]
            new_ids[sample, place] = token = max(range(len(logits)), key=lambda word: (logits[word], -word))
            if token == eos_id:
                break
    return {"new_ids": new_ids}


#: The conventions that the arguments of a call decide, or the calls that are made.
SEEN_IN_ARGUMENTS = {"biases", "later_tokens", "cache_state"}


def in_loops(component, m, inputs, params, attributes, conventions):
    make = np.frompyfunc(m.number, 1, 1)
    arrays = {k: make(a) if a.dtype.kind == "f" else a for k, a in {**inputs, **params}.items()}
    options = {name: option for name, option in conventions.items() if name not in SEEN_IN_ARGUMENTS}
    return globals()[component](m, **arrays, **attributes, **options)


def in_balls(component, inputs, params, attributes, conventions, read=balls.read):
    return evaluate(component, balls.exact, read, inputs, params, attributes, conventions)


# ── small inputs at 50 digits ──


def drawn(seed, *shape):
    """Sixteenths in [-3, 3], and here and there a decimal that no binary number holds."""
    generator = np.random.default_rng(seed)
    values = generator.integers(-48, 49, shape) / 16
    return np.where(generator.random(shape) < 0.2, np.round(values * 0.7, 1), values)


def some(seed, *shape):
    return np.random.default_rng(seed).random(shape) < 0.6


def attention(lead=(2,), q_seq=3, kv_seq=5, d_k=4, d_v=7, **mask):
    return {"query": drawn(1, *lead, q_seq, d_k), "key": drawn(2, *lead, kv_seq, d_k),
            "value": drawn(3, *lead, kv_seq, d_v), **mask}  # fmt: skip


def grouped(heads, kv_heads, **mask):
    return {"query": drawn(11, 2, heads, 3, 4), "key": drawn(12, 2, kv_heads, 5, 4),
            "value": drawn(13, 2, kv_heads, 5, 2), **mask}  # fmt: skip


def cached(seq):
    return {"query": drawn(14, 2, 4, seq, 3), "key": drawn(15, 2, 2, seq, 3), "value": drawn(16, 2, 2, seq, 2)}


def one_empty(*shape):
    mask = some(9, *shape)
    mask[..., 0, :] = False
    mask[..., 1, :] = [True, *[False] * (shape[-1] - 1)]
    return mask


def heads(q_in=6, k_in=4, v_in=5, h=2, d_k=3, d_v=2, d_model=7, biases="qkvo"):
    params: dict[str, tuple[int, ...]]
    params = {"w_q": (q_in, h * d_k), "w_k": (k_in, h * d_k), "w_v": (v_in, h * d_v), "w_o": (h * d_v, d_model)}
    params |= {f"b_{x}": params[f"w_{x}"][1:] for x in biases}
    return {name: drawn(10 + i, *shape) / 4 for i, (name, shape) in enumerate(params.items())}


TOKENS = {"query": drawn(20, 2, 3, 6), "key": drawn(21, 2, 5, 4), "value": drawn(22, 2, 5, 5)}
FUSED = {"w_qkv": drawn(31, 4, 18) / 4, "w_o": drawn(32, 6, 6) / 4}
GATED = {"w_gate": drawn(51, 4, 3) / 2, "w_up": drawn(52, 4, 3) / 2, "w_down": drawn(53, 3, 4)}
GATED |= {"b_gate": drawn(54, 3), "b_up": drawn(55, 3), "b_down": drawn(56, 4)}
LAYER = {
    "w_q": drawn(61, 4, 16) / 2, "w_k": drawn(62, 4, 8) / 2, "w_v": drawn(63, 4, 8) / 2, "w_o": drawn(64, 16, 4) / 2,
    **{f"{name}.gamma": drawn(65 + i, 4) for i, name in enumerate(("norm_1", "norm_2", "post_norm_1", "post_norm_2"))},
    **{f"feed_forward.{name}": w for name, w in GATED.items() if name[0] == "w"},
}  # fmt: skip
SQUARE = {"w_q": drawn(41, 3, 3), "w_k": drawn(42, 3, 3), "w_v": drawn(43, 3, 3)}
X = {"x": drawn(23, 2, 5, 4)}
IDS = np.array([[3, 0, 1, -2], [0, 0, 3, 3]])
ROWS = ("uniform", "zeros", "nan")

SMALL = {
    "softmax": ("softmax", {"scores": drawn(1, 2, 3, 5)}, {}, {}, {}),
    "softmax of huge scores": (
        "softmax", {"scores": np.array([[1e4, 9999.5, -1e4], [-12000, -12001, -12000]])}, {}, {}, {},
    ),
    "attention": ("scaled_dot_product_attention", attention(), {}, {}, {}),
    "attention without batch": ("scaled_dot_product_attention", attention(()), {}, {}, {}),
    "attention of many axes": ("scaled_dot_product_attention", attention((2, 3), mask=some(4, 2, 1, 1, 5)), {}, {}, {}),
    "attention of one key": ("scaled_dot_product_attention", attention(kv_seq=1), {}, {}, {}),
    "attention under a mask of keys": (
        "scaled_dot_product_attention", attention(mask=np.array([True, False, True, True, False])), {}, {}, {},
    ),
    "attention under a mask of queries": ("scaled_dot_product_attention", attention(mask=one_empty(3, 1)), {}, {}, {}),
    **{
        f"attention with an empty row, {row}": (
            "scaled_dot_product_attention", attention(mask=one_empty(2, 3, 5)), {}, {}, {"empty_row": row},
        )
        for row in ROWS
    },
    **{
        f"{h} heads of queries and {kv} of keys, {groups}": (
            "grouped_query_attention", grouped(h, kv), {}, {}, {"gqa_groups": groups},
        )
        for h, kv in ((4, 2), (6, 2), (6, 3), (3, 1), (2, 2))
        for groups in ("interleave", "tile")
    },
    **{
        f"a cache, {calls} after {after}, {groups}": (
            "cached_attention", cached(sum(calls)), {}, {"calls": calls, "after": after}, {"gqa_groups": groups},
        )
        for calls, after in (((4,), (0,)), ((2, 1, 2), (0, 1, 2)), ((2, 1, 1), (0, 1, 1)), ((1, 1, 2), (0, 0, 2)))
        for groups in ("interleave", "tile")
    },
    "a cache and a hidden token": (
        "cached_attention", {**cached(4), "mask": np.array([[1, 1, 1, 1], [1, 1, 0, 1]], bool).reshape(2, 1, 1, 4)},
        {}, {"calls": (2, 2)}, {},
    ),
    **{
        f"grouped queries with {', '.join([*said, *numbers])}": (
            "grouped_query_attention", grouped(4, 2, **said, **mask), {}, numbers, {},
        )
        for said in (
            {}, {"bias": drawn(14, 4, 3, 5)}, {"sinks": drawn(15, 4)},
            {"gamma_q": drawn(16, 4), "gamma_k": drawn(17, 4)}, {"gamma_k": drawn(18, 4)},
        )
        for numbers in ({}, {"scale": 0.3}, {"softcap": 1.5}, {"scale": 0.3, "softcap": 1.5})
        for mask in ({}, {"mask": one_empty(2, 1, 3, 5)})
        if mask or said or numbers
    },
    "grouped queries, a mask for each head": (
        "grouped_query_attention", grouped(4, 2, mask=some(9, 1, 4, 3, 5) | np.eye(3, 5, dtype=bool)), {}, {}, {},
    ),
    **{
        f"grouped queries with an empty row, {row}": (
            "grouped_query_attention", grouped(4, 2, mask=one_empty(2, 1, 3, 5)), {}, {}, {"empty_row": row},
        )
        for row in ROWS
    },
    **{
        f"causal mask {q}x{k}, {corner}": ("causal_mask", {}, {}, {"q_seq": q, "kv_seq": k}, {"causal_corner": corner})
        for q, k in ((4, 4), (2, 5), (5, 2), (1, 6))
        for corner in ("top_left", "bottom_right")
    },
    **{
        f"positions, padding {padded}": ("position_ids", {"mask": some(8, 3, 6)}, {}, {}, {"padded_position": padded})
        for padded in ("one", "zero", "counted", "clamped")
    },
    **{
        f"ALiBi of {h} heads, {q}x{k}, {corner}, {slopes}, {form}": (
            "alibi_bias", {"like": np.zeros((h, q, k))}, {}, {},
            {"causal_corner": corner, "alibi_slopes": slopes, "alibi_form": form},
        )
        for h, q, k in ((1, 3, 3), (3, 2, 4), (6, 3, 2), (4, 1, 3))
        for corner in ("top_left", "bottom_right")
        for slopes in ("nearest_power", "geometric")
        for form in ("difference", "absolute", "key_index", "from_last_key")
    },
    **{
        f"window of {window}, {q}x{k}, {corner}, {size}": (
            "sliding_window_mask", {}, {}, {"q_seq": q, "kv_seq": k, "window": window},
            {"causal_corner": corner, "window_size": size},
        )
        for q, k, window in ((4, 4, 2), (2, 5, 3), (6, 2, 1), (1, 6, 9))
        for corner in ("top_left", "bottom_right")
        for size in ("with_oneself", "before_oneself")
    },
    **{
        f"padding mask of {pad}": ("padding_mask", {"ids": IDS}, {}, {"pad_id": pad}, {})
        for pad in (0, 3, -2, 9)
    },
    **{
        f"embedding, {scale}": (
            "token_embedding", {"ids": np.array([[4, 0, 4], [6, 1, 2]])}, {"table": drawn(5, 7, 5)}, {},
            {"embedding_scale": scale},
        )
        for scale in ("none", "sqrt_d_model")
    },
    **{
        f"width {d}, {layout}": ("positional_encoding", {"x": drawn(6, 2, 5, d)}, {}, {}, {"pe_layout": layout})
        for d in (2, 4, 6, 10)
        for layout in ("interleaved", "concatenated", "tensor2tensor")
    },
    **{
        f"odd width {d}, {last}": ("positional_encoding", {"x": drawn(7, 1, 4, d)}, {}, {}, {"odd_d_model": last})
        for d in (1, 5, 7)
        for last in ("extra_sine", "zero")
    },
    **{
        f"pairs, {pairing}, {direction}": (
            "rotary_embedding", {"x": drawn(46, 2, 3, 8), "positions": np.array([5, 0, 4097])}, {}, {"base": 500.0},
            {"rope_pairing": pairing, "rope_direction": direction},
        )
        for pairing in ("interleaved", "half")
        for direction in ("positive", "negative")
    },
    "pairs of some channels": (
        "rotary_embedding", {"x": drawn(47, 2, 3, 8), "positions": np.array([[7, 1, 2], [0, 3, 3]])}, {},
        {"rotary_width": 6}, {"rope_pairing": "interleaved", "rope_direction": "positive"},
    ),
    **{
        f"scaled pairs, {scaling}, {length}": (
            "rotary_embedding", {"x": drawn(48, 3, 8), "positions": np.array([5, 70, 4097])}, {},
            {"base": 100.0, "scaling_factor": 2.5, "original_length": length}, {"rope_scaling": scaling},
        )
        for scaling in ("linear", "llama3", "yarn", "yarn_not_rounded", "yarn_by_turns")
        for length in (32, 3000)
    },
    **{
        f"filtered tokens, {order}, {ties}": (
            "token_filter", {"logits": drawn(49, 3, 7), "previous": np.array([[0, 3], [1, 1], [6, 2]])}, {},
            {"temperature": 0.75, "top_k": 5, "top_p": 0.83, "min_p": 0.11, "repetition_penalty": 1.5},
            {"sample_order": order, "sample_ties": ties},
        )
        for order in ("temperature_first", "temperature_last")
        for ties in ("exactly_k", "all_equal")
    },
    **{
        f"experts, {weights}, {k}": (
            "expert_router", {"x": drawn(50, 3, 5)}, {"w_router": drawn(51, 5, 4)}, {"top_k": k},
            {"moe_weights": weights},
        )
        for weights in ("renormalised", "not_renormalised", "sigmoid")
        for k in (1, 2, 4)
    },
    **{
        f"mixture, {weights}, {activation}": (
            "expert_feed_forward", {"x": drawn(57, 1, 3, 4)},
            {
                "w_router": drawn(58, 4, 3),
                **{f"experts.{e}.{name}": w * (1 - e / 4) for e in range(3) for name, w in GATED.items()},
            },
            {"num_experts": 3, "top_k": 2},
            {"moe_weights": weights, "gate_activation": activation},
        )
        for weights, activation in (("renormalised", "silu"), ("not_renormalised", "gelu"), ("sigmoid", "relu"))
    },
    **{
        f"equal tokens, {ties}": (
            "token_filter", {"logits": np.array([[1.0, 3, 3, 3, 0], [2, 2, 1, 0, 0]])}, {}, {"top_k": 2},
            {"sample_ties": ties},
        )
        for ties in ("exactly_k", "all_equal")
    },
    **{
        f"attention of kept weights, {rate}": (
            "scaled_dot_product_attention", attention(), {}, {"dropout_rate": rate, "seed": 1}, {},
        )
        for rate in (0, 0.3, 1)
    },
    **{
        f"what dropout keeps, {rate}, {training}": (
            "dropout", {"x": drawn(24, 2, 5)}, {}, {"rate": rate, "training": training, "seed": 1}, {},
        )
        for rate in (0, 0.3, 1)
        for training in (True, False)
    },
    "the largest weight": ("xavier_uniform", {"like": drawn(25, 3, 4)}, {}, {"seed": 1}, {}),
    "heads": ("multi_head_attention", TOKENS, heads(), {"num_heads": 2}, {}),
    "heads without biases": ("multi_head_attention", TOKENS, heads(biases=""), {"num_heads": 2}, {}),
    "heads with some biases": ("multi_head_attention", TOKENS, heads(biases="ko"), {"num_heads": 2}, {}),
    "one head": ("multi_head_attention", TOKENS, heads(h=1), {"num_heads": 1}, {}),
    "three heads, padding": (
        "multi_head_attention", {**TOKENS, "mask": np.arange(5) < np.array([4, 2]).reshape(2, 1, 1, 1)}, heads(h=3),
        {"num_heads": 3}, {},
    ),
    "a mask for each head": (
        "multi_head_attention", {**TOKENS, "mask": np.stack([np.tri(3, 5, 1), 1 - np.tri(3, 5, -1)]).astype(bool)},
        heads(), {"num_heads": 2}, {},
    ),
    **{
        f"heads with an empty row, {row}": (
            "multi_head_attention", {**TOKENS, "mask": one_empty(2, 1, 3, 5)}, heads(), {"num_heads": 2},
            {"empty_row": row},
        )
        for row in ROWS
    },
    "fused": ("fused_multi_head_attention", X, FUSED, {"num_heads": 2}, {}),
    "fused, three heads": ("fused_multi_head_attention", X, FUSED, {"num_heads": 3}, {}),
    "fused with biases": (
        "fused_multi_head_attention", {**X, "mask": np.tri(5).astype(bool)},
        {**FUSED, "b_qkv": drawn(33, 18), "b_o": drawn(34, 6)}, {"num_heads": 2}, {},
    ),
    **{
        f"fused with an empty row, {row}": (
            "fused_multi_head_attention", {**X, "mask": one_empty(2, 1, 5, 5)}, FUSED, {"num_heads": 2},
            {"empty_row": row},
        )
        for row in ROWS
    },
    **{
        f"gated, {option}": ("gated_feed_forward", X, GATED, {}, {"gate_activation": option})
        for option in ("silu", "gelu", "gelu_tanh", "relu")
    },
    "gated without biases": ("gated_feed_forward", X, {n: w for n, w in GATED.items() if n[0] == "w"}, {}, {}),
    **{
        f"decoder-only layer, {order}, {pairing}, {groups}": (
            "decoder_only_layer", X, LAYER, {"num_heads": 4, "num_kv_heads": 2, "base": 50},
            {"block_order": order, "rope_pairing": pairing, "gqa_groups": groups, "rms_norm_weight": weight},
        )
        for order in ("pre", "parallel", "sandwich")
        for pairing, groups, weight in (("interleaved", "interleave", "one_plus_w"), ("half", "tile", "w"))
    },
    **{
        f"decoder-only layer with an empty row, {row}": (
            "decoder_only_layer", {**X, "mask": one_empty(2, 1, 5, 5)}, LAYER, {"num_heads": 4, "num_kv_heads": 2},
            {"empty_row": row, "rms_norm_eps": "1e-5", "gate_activation": "gelu_tanh"},
        )
        for row in ROWS
    },
    **{
        f"decoder-only layer with {scores}, {size}": (
            "decoder_only_layer", X, LAYER, {"num_heads": 4, "num_kv_heads": 2, "base": 50, **scores},
            {"window_size": size},
        )
        for scores in ({"window": 2}, {"window": 3, "scale": 0.75, "softcap": 1.5})
        for size in ("with_oneself", "before_oneself")
    },
    **{
        f"decoder-only layer with normalised queries and keys, {pairing}": (
            "decoder_only_layer", X, {**LAYER, "gamma_q": drawn(69, 4), "gamma_k": drawn(70, 4)},
            {"num_heads": 4, "num_kv_heads": 2, "base": 50},
            {"rope_pairing": pairing, "rms_norm_weight": weight, "rms_norm_eps": "1e-5"},
        )
        for pairing, weight in (("interleaved", "one_plus_w"), ("half", "w"))
    },
    **{
        f"decoder-only model, {output}, {scale}": (
            "decoder_only_model", {"ids": np.array([[1, 0, 2], [2, 2, 0]])},
            {
                "table": drawn(71, 3, 4), "norm.gamma": drawn(72, 4),
                **({"w_vocab": drawn(73, 4, 3)} if output == "separate" else {}),
                **{f"layers.{i}.{name}": w * (1 - i / 4) for i in range(2) for name, w in LAYER.items()},
            },
            {"num_heads": 4, "num_kv_heads": 2, "num_layers": 2, "pad_id": 0},
            {"output_layer": output, "embedding_scale": scale},
        )
        for output, scale in (("separate", "none"), ("tied", "sqrt_d_model"))
    },
    **{
        f"decoder-only model, local layers {local}": (
            "decoder_only_model", {"ids": np.array([[1, 0, 2, 1]])},
            {
                "table": drawn(71, 3, 4), "norm.gamma": drawn(72, 4),
                **{f"layers.{i}.{name}": w * (1 - i / 16) for i in range(6) for name, w in LAYER.items()},
            },
            {"num_heads": 4, "num_kv_heads": 2, "num_layers": 6, "base": 50, "local_base": 10, "window": 2,
             "scale": 0.75, "softcap": 1.5, "logit_softcap": 2.0},
            {"output_layer": "tied", "local_layers": local},
        )
        for local in ("every", "every_second", "five_of_six")
    },
    **{
        f"a model with caches, {calls} after {after}": (
            "cached_model", {"ids": np.array([[1, 2, 0, 1], [2, 2, 1, 0]])},
            {
                "table": drawn(74, 3, 4), "norm.gamma": drawn(75, 4),
                **{f"layers.{i}.{name}": w * (1 - i / 4) for i in range(2) for name, w in LAYER.items()},
            },
            {"num_heads": 4, "num_kv_heads": 2, "num_layers": 2, "calls": calls, "after": after, "pad_id": pad_id},
            {"output_layer": "tied"},
        )
        for calls, after, pad_id in (((2, 1, 1), (0, 1, 1), None), ((1, 1, 2), (0, 0, 2), 0))
    },
    **{
        f"generation that ends with {eos_id}, padding {pad_id}": (
            "generate", {"ids": np.array([[0, 2], [1, 3]])},
            {
                "table": drawn(76, 5, 4), "norm.gamma": drawn(77, 4), "w_vocab": drawn(78, 4, 5),
                **{f"layers.{i}.{name}": w * (1 - i / 4) for i in range(2) for name, w in LAYER.items()},
            },
            {
                "num_heads": 4, "num_kv_heads": 2, "num_layers": 2, "pad_id": pad_id, "eos_id": eos_id,
                "max_new_tokens": 4,
            },
            {"output_layer": "separate"},
        )
        for eos_id, pad_id in ((4, 0), (1, None))
    },
    "single head": ("single_head_attention", {"x": drawn(44, 4, 3)}, SQUARE, {"causal": False}, {}),
    "single head, causal": ("single_head_attention", {"x": drawn(44, 4, 3)}, SQUARE, {"causal": True}, {}),
    **{
        f"{steps} steps at {rate}, {'causal' if causal else 'all seen'}": (
            "single_head_attention_step", {"x": drawn(44, 4, 3), "output_gradient": drawn(45, 4, 3)}, SQUARE,
            {"causal": causal, "learning_rate": rate, "steps": steps}, {},
        )
        for steps, rate, causal in ((1, 0.1, True), (1, 0.25, False), (3, 0.01, True), (2, 0, False))
    },
}  # fmt: skip


#: Layers and what follows them are held by three implementations that share nothing with the formulas, in
#: test_tolerance.py.
LOOPED = {path.stem for path in (ROOT / "contracts").glob("*.yaml")} & set(globals())


def test_every_component_with_loops_is_tried_small():
    assert {call[0] for call in SMALL.values()} == LOOPED


@pytest.mark.parametrize("call", SMALL.values(), ids=SMALL)
def test_balls_agree_with_loops_at_50_digits(call):
    proven, looped = in_balls(*call), in_loops(call[0], EXACT, *call[1:])
    assert set(proven) - {GAPS} == set(looped)
    for name, expected in looped.items():
        assert proven[name].shape == expected.shape, name
        if expected.dtype.kind in "bi":
            assert np.array_equal(proven[name], expected), name
            continue
        for place in np.ndindex(expected.shape):
            ball, value = proven[name][place], expected[place]
            if mpmath.isnan(value):
                assert not ball.is_finite(), f"{name}{place}"
                continue
            assert float(ball.rad()) <= 1e-60 * max(1, abs(value)), f"{name}{place}"
            middle = mpmath.mpf(ball.mid().str(55, radius=False))
            assert abs(middle - value) <= mpmath.mpf(10) ** -45 * max(1, abs(value)), f"{name}{place}"


def test_an_odd_width_is_refused_by_that_convention():
    with pytest.raises(ValueError, match=r"^x: d_model is 3, which is odd$"):
        in_balls("positional_encoding", {"x": drawn(1, 1, 2, 3)}, {}, {}, {"odd_d_model": "refused"})


def test_decimals_mean_themselves_and_not_the_floats_nearest_to_them():
    tenth = in_balls("token_embedding", {"ids": np.array([[0]])}, {"table": np.array([[0.1]])}, {}, {})["output"][
        0, 0, 0
    ]
    assert tenth.overlaps(flint.arb(1) / 10)
    assert not tenth.overlaps(flint.arb(0.1))


# ── the shipped cases in float64 ──


def at(want, array):
    return array[tuple(np.array(want.indices).T)] if want.form == "probes" else array


@pytest.mark.sample(5)
@pytest.mark.parametrize("component", sorted(LOOPED))
def test_every_stored_golden_value_is_what_the_balls_and_the_loops_give(component, spec: Spec):
    compared = 0
    for case in spec.cases_of(component):
        if case.cotangent is not None or case.is_computed:
            continue  # loops over a large call take minutes: deriving compares what is computed with what is proven
        for options in case.combine_stored():
            outputs, option = case.expects(options), case.key(options)
            if outputs is None or all(golden.within is not None for golden in outputs.values()):
                continue
            called = case.under(options)
            chosen = choose_options(called, spec.contracts[case.component], options)
            call = (called.input_arrays, called.param_arrays, called.attributes, chosen)
            read = balls.exact if case.has_all_bits else balls.read
            proven, looped = in_balls(case.component, *call, read), in_loops(case.component, FLOAT, *call)
            for name, golden in outputs.items():
                if golden.within is not None:
                    continue  # statistics are test_statistics.py's
                exact, near = at(case.expect[name], proven[name]), at(case.expect[name], looped[name])
                compared += 1
                if golden.values.dtype.kind in "bi":
                    assert np.array_equal(golden.values, exact), f"{case.id} {option} {name}"
                    assert np.array_equal(golden.values, near), f"{case.id} {option} {name}"
                    continue
                printed = np.array([float(text) for text in balls.decimals(exact)]).reshape(exact.shape)
                np.testing.assert_array_equal(golden.values, printed, f"{case.id} {option} {name}")
                bound = tolerance("float64", golden.error_scale, golden.magnitude)
                np.testing.assert_allclose(
                    near.astype(float), golden.values, rtol=0, atol=bound, err_msg=f"{case.id} {option} {name}"
                )
    assert compared


def test_the_formulas_are_named_as_their_components(spec: Spec):
    assert all(callable(FORMULAS[component]) for component in spec.contracts)
