"""Attention with separate projections, as people write it."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class CourseAttention(nn.Module):
    """Values come first and the heads are contracted with einsum."""

    def __init__(self, embed_size, heads):
        super().__init__()
        assert embed_size % heads == 0, "embed_size must be a multiple of heads"
        self.heads, self.head_dim = heads, embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask):
        n, v_len, k_len, q_len = query.shape[0], values.shape[1], keys.shape[1], query.shape[1]
        values = self.values(values).reshape(n, v_len, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(n, k_len, self.heads, self.head_dim)
        queries = self.queries(query).reshape(n, q_len, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / self.head_dim**0.5, dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(n, q_len, -1)
        return self.fc_out(out)


class ClonedLinears(nn.Module):
    """Four clones in a list, and a mask of (batch, queries, keys)."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = (
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2) for lin, x in zip(self.linears, (query, key, value))
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = scores.softmax(dim=-1)
        x = torch.matmul(self.dropout(self.attn), value)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


class UnnamedMatrices(nn.Module):
    """Names that say nothing, and matrices that multiply from the right."""

    def __init__(self, n, h):
        super().__init__()
        self.h = h
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.randn(n, n) / n) for _ in range(4))

    def forward(self, x, y, z):
        def cut(t):
            return t.unflatten(-1, (self.h, -1)).transpose(1, 2)

        k, q, v = cut(y @ self.b), cut(x @ self.c), cut(z @ self.a)
        w = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return (w @ v).transpose(1, 2).flatten(2) @ self.d


class SequenceFirst(nn.Module):
    """(seq, batch, width), with a mask of the padded keys and one of positions."""

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True):
        super().__init__()
        self.num_heads, self.scaling = num_heads, (embed_dim // num_heads) ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        length, batch, width = query.shape
        q = self.q_proj(query) * self.scaling
        q, k, v = (
            t.contiguous().view(-1, batch * self.num_heads, width // self.num_heads).transpose(0, 1)
            for t in (q, self.k_proj(key), self.v_proj(value))
        )
        scores = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, float("-inf"))
        if key_padding_mask is not None:
            scores = scores.view(batch, self.num_heads, length, -1)
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf")).flatten(0, 1)
        probs = F.softmax(scores, dim=-1)
        out = torch.bmm(probs, v).transpose(0, 1).contiguous().view(length, batch, width)
        return self.out_proj(out), probs.view(batch, self.num_heads, length, -1)


class AdditiveMask(nn.Module):
    """The mask is added to the scores, and the weights come back too."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def transpose_for_scores(self, x):
        return x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, q, k, v, attention_mask=None):
        q = self.transpose_for_scores(self.query(q))
        k = self.transpose_for_scores(self.key(k))
        v = self.transpose_for_scores(self.value(v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = nn.Softmax(dim=-1)(scores)
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)
        return self.dense(context), probs


class OneHead(nn.Module):
    """One of the heads of HeadList."""

    def __init__(self, dim_in, dim_k):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim_in, dim_k) for _ in range(3))

    def forward(self, query, key, value, mask=None):
        query, key, value = self.q(query), self.k(key), self.v(value)
        scores = query.bmm(key.transpose(1, 2)) / query.size(-1) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return F.softmax(scores, dim=-1).bmm(value)


class HeadList(nn.Module):
    """A module for each head."""

    def __init__(self, num_heads, d_model):
        super().__init__()
        self.heads = nn.ModuleList([OneHead(d_model, d_model // num_heads) for _ in range(num_heads)])
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, mask=None):
        return self.linear(torch.cat([h(query, key, value, mask) for h in self.heads], dim=-1))


class KeysWithoutBias(CourseAttention):
    """Queries and values have a bias, and keys have none, which changes no result."""

    def __init__(self, embed_size, heads):
        super().__init__(embed_size, heads)
        self.keys = nn.Linear(embed_size, embed_size, bias=False)


class HeadsOfWidthOut(nn.Module):
    """A module for each head; what comes out of one is a size of the constructor."""

    def __init__(self, num_heads, dim_in, dim_out):
        super().__init__()
        self.heads = nn.ModuleList([OneHead(dim_in, dim_out) for _ in range(num_heads)])
        self.linear = nn.Linear(num_heads * dim_out, dim_in)

    def forward(self, query, key, value, mask=None):
        return self.linear(torch.cat([h(query, key, value, mask) for h in self.heads], dim=-1))


class FreeWidths(nn.Module):
    """Keys and values have widths of their own, and no projection has a bias."""

    def __init__(self, n_head, d_model, d_k, d_v):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)

    def forward(self, q, k, v, mask=None):
        b, lq, lk = q.size(0), q.size(1), k.size(1)
        q = self.w_qs(q).view(b, lq, self.n_head, self.d_k).transpose(1, 2)
        k = self.w_ks(k).view(b, lk, self.n_head, self.d_k).transpose(1, 2)
        v = self.w_vs(v).view(b, lk, self.n_head, self.d_v).transpose(1, 2)
        attn = torch.matmul(q / self.d_k**0.5, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        attn = F.softmax(attn, dim=-1)
        return self.fc(torch.matmul(attn, v).transpose(1, 2).contiguous().view(b, lq, -1)), attn


class KeysAndValuesFused(nn.Module):
    """Self-attention, or attention over a context whose keys and values share a projection."""

    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_kv = nn.Linear(dim, dim_head * heads * 2, bias=False)
        self.to_out = nn.Linear(dim_head * heads, dim)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is not None:
            sim.masked_fill_(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        out = torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class KernelCall(nn.Module):
    """The library's kernel does the rest."""

    def __init__(self, model_dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query_proj = nn.Linear(model_dim, model_dim)
        self.key_proj = nn.Linear(model_dim, model_dim)
        self.value_proj = nn.Linear(model_dim, model_dim)
        self.output_proj = nn.Linear(model_dim, model_dim)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for proj, x in ((self.query_proj, query), (self.key_proj, key), (self.value_proj, value))
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output_proj(out.transpose(1, 2).flatten(2))


class ValidLengths(nn.Module):
    """Lengths instead of a mask."""

    def __init__(self, num_hiddens, num_heads, dropout=0.0, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(num_hiddens, num_hiddens, bias=bias) for _ in range(4))

    def forward(self, queries, keys, values, valid_lens=None):
        q, k, v = (
            t.reshape(t.shape[0], t.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)
            for t in (self.W_q(queries), self.W_k(keys), self.W_v(values))
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if valid_lens is not None:
            seen = torch.arange(k.shape[2], device=k.device)[None, :] < valid_lens[:, None]
            scores = scores.masked_fill(~seen[:, None, None, :], -1e6)
        return self.W_o((scores.softmax(-1) @ v).permute(0, 2, 1, 3).flatten(2))


class IgnoreMask(nn.Module):
    """True means that a key is hidden."""

    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, Q, K, V, attn_mask=None):
        q, k, v = (
            m(t).unflatten(-1, (self.nhead, -1)).transpose(1, 2) for m, t in ((self.wq, Q), (self.wk, K), (self.wv, V))
        )
        s = q @ k.mT / k.shape[-1] ** 0.5
        if attn_mask is not None:
            s = s.masked_fill(attn_mask, -math.inf)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class NeedsMask(nn.Module):
    """Nobody may leave the mask out; a row without a key gives zeros."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.proj_q, self.proj_k, self.proj_v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query, key, value, mask):
        q, k, v = (m(t) for m, t in ((self.proj_q, query), (self.proj_k, key), (self.proj_v, value)))
        q, k, v = (torch.stack(t.chunk(self.heads, dim=-1), dim=1) for t in (q, k, v))
        visible = mask.unsqueeze(1)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, torch.finfo(q.dtype).min)
        powers = (scores - scores.amax(-1, keepdim=True)).exp() * visible
        weights = powers / powers.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        return self.proj(torch.cat((weights @ v).unbind(1), dim=-1))


class EinsumHeads(nn.Module):
    """Every projection has an axis for the heads."""

    def __init__(self, n_heads, d_model, d_head):
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.zeros(n_heads, d_model, d_head)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(n_heads, d_head)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.zeros(n_heads, d_head, d_model)), nn.Parameter(torch.zeros(d_model))

    def forward(self, query, key, value, mask=None):
        q = torch.einsum("bsd,hdk->bhsk", query, self.W_Q) + self.b_Q[:, None]
        k = torch.einsum("bsd,hdk->bhsk", key, self.W_K) + self.b_K[:, None]
        v = torch.einsum("bsd,hdk->bhsk", value, self.W_V) + self.b_V[:, None]
        scores = torch.einsum("bhqk,bhsk->bhqs", q, k) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e30)
        return torch.einsum("bhsk,hkd->bsd", scores.softmax(-1) @ v, self.W_O) + self.b_O


class ListOfProjections(nn.Module):
    """The projections but the last are a list, and a switch next to the mask hides the future."""

    def __init__(self, n_heads, hidden_size):
        super().__init__()
        self.n_heads = n_heads
        self.reads = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.gives = nn.Linear(hidden_size, hidden_size)

    def forward(self, q, k, v, causal_mask=False, mask=None):
        q, k, v = (
            read(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for read, x in zip(self.reads, (q, k, v), strict=True)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if causal_mask:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -1e9)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.gives((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class GivenHeadWidth(nn.Module):
    """It asks for the width of a head, and for that of all heads, which must be that of the model."""

    def __init__(self, emb_dim, d_head, n_heads, proj_dim):
        super().__init__()
        if emb_dim != d_head * n_heads or proj_dim != emb_dim:
            raise ValueError("emb_dim must be d_head times n_heads")
        self.d_head = d_head
        self.q, self.k, self.v = (nn.Linear(emb_dim, proj_dim) for _ in range(3))
        self.out = nn.Linear(proj_dim, emb_dim)

    def forward(self, q, k, v, mask=None):
        q, k, v = (
            m(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2) for m, x in ((self.q, q), (self.k, k), (self.v, v))
        )
        scores = q @ k.mT / math.sqrt(self.d_head)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class SwitchedCausal(CourseAttention):
    """Its constructor asks if later tokens are hidden."""

    def __init__(self, causal: bool, hidden_dim, n_heads):
        super().__init__(hidden_dim, n_heads)
        self.causal = causal

    def forward(self, value, key, query, mask=None):
        if self.causal:
            mask = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril()
        return super().forward(value, key, query, mask)


class EinsumReads(nn.Module):
    """The projections that read have an axis for the heads; the last one has none."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        width = d_model // n_heads
        self.query, self.key, self.value = (nn.Parameter(torch.zeros(n_heads, d_model, width)) for _ in range(3))
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, q, k, v):
        q, k, v = (torch.einsum("bsd,hdk->bhsk", x, w) for x, w in ((q, self.query), (k, self.key), (v, self.value)))
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class SoftmaxInFloat32(CourseAttention):
    """Its softmax is in float32 whatever comes in: float64 has no product with it."""

    def forward(self, values, keys, query, mask=None):
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for layer, x in ((self.queries, query), (self.keys, keys), (self.values, values))
        )
        energy = q @ k.mT / math.sqrt(self.head_dim)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = F.softmax(energy, dim=-1, dtype=torch.float32)
        return self.fc_out((attention @ v).transpose(1, 2).flatten(2))
