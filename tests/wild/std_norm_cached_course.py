# deserves: variant norm_placement=pre, empty_row=unspecified, final_norm=after_stack, norm_divisor=std_plus_eps, layer_norm_eps=1e-6
"""A course solution in which the reference's normalisation by the standard deviation was taken over, with a cache for decoding."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ARRAYS = "torch"
NAME = "course solution with a cache"


class LayerNormalization(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.alpha = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        std = x.std(dim=-1, keepdim=True)
        return self.alpha * (x - mean) / (std + self.eps) + self.bias


class FeedForwardBlock(nn.Module):
    def __init__(self, d_model, d_ff, dropout):
        super().__init__()
        self.linear_1 = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.linear_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear_2(self.dropout(torch.relu(self.linear_1(x))))


class MultiHeadAttentionBlock(nn.Module):
    def __init__(self, d_model, h, d_head, dropout):
        super().__init__()
        self.h, self.d_k = h, d_head
        self.w_q = nn.Linear(d_model, h * d_head)
        self.w_k = nn.Linear(d_model, h * d_head)
        self.w_v = nn.Linear(d_model, h * d_head)
        self.w_o = nn.Linear(h * d_head, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None, cache=None, key=None):
        query = self.w_q(q).view(q.shape[0], q.shape[1], self.h, self.d_k).transpose(1, 2)
        if cache is not None and key in cache and k is None:
            keys, values = cache[key]
        else:
            keys = self.w_k(k).view(k.shape[0], k.shape[1], self.h, self.d_k).transpose(1, 2)
            values = self.w_v(v).view(v.shape[0], v.shape[1], self.h, self.d_k).transpose(1, 2)
            if cache is not None:
                if key in cache:
                    keys = torch.cat([cache[key][0], keys], dim=2)
                    values = torch.cat([cache[key][1], values], dim=2)
                cache[key] = keys, values
        scores = (query @ keys.transpose(-2, -1)) * self.d_k**-0.5
        if mask is not None:
            scores = scores + (1 - mask.to(scores.dtype)) * -1e4
        scores = self.dropout(scores.softmax(dim=-1))
        x = scores @ values
        x = x.transpose(1, 2).contiguous().view(x.shape[0], -1, self.h * self.d_k)
        return self.w_o(x)


class ResidualConnection(nn.Module):
    def __init__(self, features, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = LayerNormalization(features)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderBlock(nn.Module):
    def __init__(self, d_model, h, d_head, d_ff, dropout=0.1):
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(d_model, h, d_head, dropout)
        self.feed_forward_block = FeedForwardBlock(d_model, d_ff, dropout)
        self.residual_connections = nn.ModuleList([ResidualConnection(d_model, dropout) for _ in range(2)])

    def forward(self, x, src_mask):
        x = self.residual_connections[0](x, lambda y: self.self_attention_block(y, y, y, src_mask))
        return self.residual_connections[1](x, self.feed_forward_block)


class DecoderBlock(nn.Module):
    def __init__(self, d_model, h, d_head, d_ff, dropout=0.1):
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(d_model, h, d_head, dropout)
        self.cross_attention_block = MultiHeadAttentionBlock(d_model, h, d_head, dropout)
        self.feed_forward_block = FeedForwardBlock(d_model, d_ff, dropout)
        self.residual_connections = nn.ModuleList([ResidualConnection(d_model, dropout) for _ in range(3)])

    def forward(self, x, encoder_output, src_mask, tgt_mask, cache=None):
        own = None if cache is None else cache.setdefault("own", {})
        first, second, third = self.residual_connections
        x = first(x, lambda y: self.self_attention_block(y, y, y, tgt_mask, own, "self"))
        x = second(x, lambda y: self.cross_attention_block(y, encoder_output, encoder_output, src_mask))
        return third(x, self.feed_forward_block)


class Transformer(nn.Module):
    def __init__(self, vocab, d_model, h, d_head, d_ff, n_enc, n_dec, pad):
        super().__init__()
        self.pad, self.d_model = pad, d_model
        self.embed = nn.Embedding(vocab, d_model)
        self.encoder = nn.ModuleList([EncoderBlock(d_model, h, d_head, d_ff) for _ in range(n_enc)])
        self.encoder_norm = LayerNormalization(d_model)
        self.decoder = nn.ModuleList([DecoderBlock(d_model, h, d_head, d_ff) for _ in range(n_dec)])
        self.decoder_norm = LayerNormalization(d_model)
        self.projection = nn.Linear(d_model, vocab)

    def positions(self, start, stop, like):
        channel = torch.arange(self.d_model, device=like.device)
        power = torch.pow(10000.0, -(channel // 2 * 2).float() / self.d_model)
        angle = torch.arange(start, stop, device=like.device).float()[:, None] * power
        return torch.where(channel % 2 == 0, torch.sin(angle), torch.cos(angle)).to(like.dtype)

    def encode(self, source):
        mask = (source != self.pad)[:, None, None, :].int()
        x = self.embed(source)
        x = x + self.positions(0, source.shape[1], x)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def decode(self, target, encoder_output, src_mask, seen=None, caches=None):
        seen = target != self.pad if seen is None else seen
        n, start = seen.shape[1], seen.shape[1] - target.shape[1]
        causal = torch.ones(n, n, device=target.device).tril()[start:]
        tgt_mask = seen[:, None, None, :].int() * causal
        x = self.embed(target)
        x = x + self.positions(start, n, x)
        for i, layer in enumerate(self.decoder):
            x = layer(x, encoder_output, src_mask, tgt_mask, None if caches is None else caches[i])
        return self.projection(self.decoder_norm(x))

    def forward(self, source, target):
        return self.decode(target, *self.encode(source))

    @torch.no_grad()
    def greedy_decode(self, source, sos, eos, max_len):
        encoder_output, src_mask = self.encode(source)
        word = torch.full((len(source), 1), sos, device=source.device)
        seen = word != self.pad
        caches = [{} for _ in self.decoder]
        words, scores = [], []
        done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        for _ in range(max_len):
            log_probs = F.log_softmax(self.decode(word, encoder_output, src_mask, seen, caches)[:, -1], dim=-1)
            score, word = log_probs.max(dim=-1, keepdim=True)
            scores.append(score[:, 0].masked_fill(done, 0))
            words.append(word[:, 0].masked_fill(done, self.pad))
            done = done | (word[:, 0] == eos)
            seen = torch.cat([seen, word != self.pad], dim=1)
        return torch.stack(words, 1), torch.stack(scores, 1)


# The adapter.


def _linear(state, at, params, weight):
    head, _, tail = weight.rpartition("w_")
    w, b = params[weight], params.get(f"{head}b_{tail}")
    state[f"{at}.weight"], state[f"{at}.bias"] = w.T, w.new_zeros(w.shape[1]) if b is None else b


def _block(state, at, params, ours):
    names = {"self_attention": "self_attention_block", "cross_attention": "cross_attention_block"}
    count = 1
    for name, block in names.items():
        if f"{ours}{name}.w_q" in params:
            count += 1
            if params[f"{ours}{name}.w_v"].shape != params[f"{ours}{name}.w_q"].shape:
                raise NotImplementedError("keys and values are equally wide")
            for role in "qkvo":
                _linear(state, f"{at}{block}.w_{role}", params, f"{ours}{name}.w_{role}")
    for i in (1, 2):
        _linear(state, f"{at}feed_forward_block.linear_{i}", params, f"{ours}feed_forward.w_{i}")
    for i in range(count):
        state[f"{at}residual_connections.{i}.norm.alpha"] = params[f"{ours}norm_{i + 1}.gamma"]
        state[f"{at}residual_connections.{i}.norm.bias"] = params[f"{ours}norm_{i + 1}.beta"]
    return state


def _sizes(params, prefix, num_heads):
    d_model, d_ff = params[f"{prefix}feed_forward.w_1"].shape
    width = params[f"{prefix}self_attention.w_q"].shape[1]
    if width % num_heads:
        raise ValueError("num_heads: does not divide the width")
    return d_model, num_heads, width // num_heads, d_ff


def _four(mask):
    return mask[None] if mask is not None and mask.dim() == 3 else mask


def layer_norm(x, *, params):
    state = {"alpha": params["gamma"], "bias": params["beta"]}
    return torch.func.functional_call(LayerNormalization(x.shape[-1]), state, (x,))


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _block({}, "", params, "")
    module = EncoderBlock(*_sizes(params, "", num_heads)).to(x).eval()
    return torch.func.functional_call(module, state, (x, _four(mask)))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = _block({}, "", params, "")
    module = DecoderBlock(*_sizes(params, "", num_heads)).to(x).eval()
    return torch.func.functional_call(module, state, (x, memory, _four(memory_mask), _four(self_mask)))


def _model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id):
    state = {"embed.weight": params["table"]}
    _linear(state, "projection", params, "w_vocab")
    for side, count in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        for i in range(count):
            _block(state, f"{side}.{i}.", params, f"{side}.{i}.")
        if f"{side}_norm.gamma" in params:  # without the declaration the module's own is that of a new one
            state[f"{side}_norm.alpha"] = params[f"{side}_norm.gamma"]
            state[f"{side}_norm.bias"] = params[f"{side}_norm.beta"]
    sizes = _sizes(params, "encoder.0.", num_heads)
    model = Transformer(len(params["table"]), *sizes, num_encoder_layers, num_decoder_layers, pad_id)
    return model.to(params["table"]).eval(), state


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    model, state = _model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    return torch.func.functional_call(model, state, (source, target))


def greedy_decode(
    source, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, bos_id, eos_id, max_length, params
):
    vocab = len(params["table"])
    if max_length < 1 or not 0 <= bos_id < vocab or not 0 <= eos_id < vocab:
        raise ValueError("max_length, bos_id, eos_id")
    model, state = _model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    model.load_state_dict(state, strict=False)
    ids, token_scores = model.greedy_decode(source, bos_id, eos_id, max_length)
    return ids, token_scores.sum(1), token_scores


MISTAKES = {
    "cross-attends-to-target": (
        "lambda y: self.cross_attention_block(y, encoder_output, encoder_output, src_mask)",
        "lambda y: self.cross_attention_block(encoder_output, y, y, None)[:, :1].expand_as(y)",
        "The cross-attention asks from the source for keys of the decoder.",
        ("cross-q-source",),
    ),
    "norm-of-residual": (
        "return x + self.dropout(sublayer(self.norm(x)))",
        "return self.norm(x) + self.dropout(sublayer(self.norm(x)))",
        "The residual is taken after the normalisation.",
        ("residual-normed",),
    ),
    "end-forgotten": (
        "done = done | (word[:, 0] == eos)",
        "done = word[:, 0] == eos",
        "A sentence that has ended is begun again at the next step.",
        ("greedy-no-eos",),
    ),
    "position-restarts": (
        "x = x + self.positions(start, n, x)",
        "x = x + self.positions(0, target.shape[1], x)",
        "With the cache every new word is given position nought.",
        ("decode-cache-offset",),
    ),
    "scale-of-all-heads": (
        "* self.d_k**-0.5",
        "* (self.h * self.d_k) ** -0.5",
        "The scores are scaled by the width of all heads together.",
        ("scale-d-model",),
    ),
    "encoder-unmasked": (
        "lambda y: self.self_attention_block(y, y, y, src_mask)",
        "lambda y: self.self_attention_block(y, y, y)",
        "The encoder attends to padding.",
        ("mask-not-inplace",),
    ),
    "scores-of-the-done": (
        "scores.append(score[:, 0].masked_fill(done, 0))",
        "scores.append(score[:, 0])",
        "What the model says after the end counts in the score.",
        ("decode-score-after-end",),
    ),
}
