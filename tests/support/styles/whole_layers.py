"""Layers, stacks and whole models, as people write them."""

import copy

import torch
from separate_attention import AdditiveMask, ClonedLinears, CourseAttention, HeadList
from small_parts import OwnNorm, Positionwise, ScaledEmbedding, Sinusoids
from torch import nn


class LibraryLayer(nn.Module):
    """Post-norm around the library's attention."""

    def __init__(self, d_model, num_heads, dim_feedforward, dropout=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads, dropout=dropout, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(d_model, dim_feedforward), nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        a, _ = self.attn(x, x, x, attn_mask=mask, need_weights=False)
        x = self.norm1(x + self.drop(a))
        return self.norm2(x + self.drop(self.linear2(torch.relu(self.linear1(x)))))


class CourseBlock(nn.Module):
    """Its feed-forward width is a multiple."""

    def __init__(self, embed_size, heads, dropout, forward_expansion):
        super().__init__()
        self.attention = CourseAttention(embed_size, heads)
        self.norm1, self.norm2 = nn.LayerNorm(embed_size), nn.LayerNorm(embed_size)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_size, forward_expansion * embed_size),
            nn.ReLU(),
            nn.Linear(forward_expansion * embed_size, embed_size),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.dropout(self.norm1(self.attention(x, x, x, mask) + x))
        return self.dropout(self.norm2(self.feed_forward(x) + x))


class CalledAsAttention(CourseBlock):
    """A layer that takes the arguments of its attention."""

    def forward(self, value, key, query, mask):
        x = self.norm1(self.attention(value, key, query, mask) + query)
        return self.norm2(self.feed_forward(x) + x)


class DecoderOfBlocks(nn.Module):
    """A self-attention, then a block that takes the memory as values and keys."""

    def __init__(self, embed_size, heads, forward_expansion, dropout):
        super().__init__()
        self.attention, self.norm = CourseAttention(embed_size, heads), nn.LayerNorm(embed_size)
        self.block = CalledAsAttention(embed_size, heads, dropout, forward_expansion)

    def forward(self, x, value, key, src_mask, trg_mask):
        return self.block(value, key, self.norm(self.attention(x, x, x, trg_mask) + x), src_mask)


class EncoderOfWords(nn.Module):
    """A stack that embeds its ids itself."""

    def __init__(self, vocab_size, d_model, num_layers, heads):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(CourseBlock(d_model, heads, 0.0, 4) for _ in range(num_layers))

    def forward(self, x, mask):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, mask)
        return x


class SublayerConnection(nn.Module):
    """Pre-norm with the residual."""

    def __init__(self, size, dropout):
        super().__init__()
        self.norm, self.dropout = OwnNorm(size), nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class PreNormLayer(nn.Module):
    """Pre-norm encoder layer, its norms inside the connections."""

    def __init__(self, d_model, h, d_ff, dropout=0.1):
        super().__init__()
        self.self_attn, self.feed_forward = ClonedLinears(h, d_model), Positionwise(d_model, d_ff)
        self.sublayer = nn.ModuleList([SublayerConnection(d_model, dropout) for _ in range(2)])

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class PreNormDecoderLayer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, d_model, h, d_ff, dropout=0.1):
        super().__init__()
        self.self_attn, self.src_attn = ClonedLinears(h, d_model), ClonedLinears(h, d_model)
        self.feed_forward = Positionwise(d_model, d_ff)
        self.sublayer = nn.ModuleList([SublayerConnection(d_model, dropout) for _ in range(3)])

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class NumberedProjections(nn.Module):
    """Its projections stand next to the attentions, with a number each."""

    def __init__(self, d_model, heads, d_ff):
        super().__init__()
        self.heads = heads
        self.W_q_1, self.W_k_1, self.W_v_1, self.W_o_1 = (nn.Linear(d_model, d_model) for _ in range(4))
        self.W_q_2, self.W_k_2, self.W_v_2, self.W_o_2 = (nn.Linear(d_model, d_model) for _ in range(4))
        self.norm_1, self.norm_2, self.norm_3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.ffn = Positionwise(d_model, d_ff)

    def attend(self, q, k, v, mask):
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if mask is None else scores.masked_fill(mask == 0, -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def forward(self, x, encoder_output, src_mask=None, trg_mask=None):
        x = self.norm_1(x + self.W_o_1(self.attend(self.W_q_1(x), self.W_k_1(x), self.W_v_1(x), trg_mask)))
        k, v = self.W_k_2(encoder_output), self.W_v_2(encoder_output)
        x = self.norm_2(x + self.W_o_2(self.attend(self.W_q_2(x), k, v, src_mask)))
        return self.norm_3(x + self.ffn(x))


class PostNormDecoderLayer(nn.Module):
    """Post-norm; the parts are not registered in the order in which they run."""

    def __init__(self, hidden_size, num_heads, intermediate_size):
        super().__init__()
        self.ffn_norm, self.cross_norm, self.self_norm = (nn.LayerNorm(hidden_size) for _ in range(3))
        self.fc1, self.fc2 = nn.Linear(hidden_size, intermediate_size), nn.Linear(intermediate_size, hidden_size)
        self.cross_attention = AdditiveMask(hidden_size, num_heads)
        self.self_attention = AdditiveMask(hidden_size, num_heads)

    def forward(self, hidden_states, encoder_output, self_mask=None, cross_mask=None):
        x = hidden_states
        x = self.self_norm(x + self.self_attention(x, x, x, self_mask)[0])
        x = self.cross_norm(x + self.cross_attention(x, encoder_output, encoder_output, cross_mask)[0])
        return self.ffn_norm(x + self.fc2(self.fc1(x).relu()))


class NormedEncoder(nn.Module):
    """A stack with a final norm."""

    def __init__(self, n_layers, d_model, n_heads, d_ff):
        super().__init__()
        self.layers = nn.ModuleList([PreNormLayer(d_model, n_heads, d_ff) for _ in range(n_layers)])
        self.norm = OwnNorm(d_model)

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class LayerOfHeads(nn.Module):
    """Each head has a module, and the sizes come in a mapping; a key of it has a default."""

    def __init__(self, config):
        super().__init__()
        self.attention = HeadList(config["heads"], config["width"])
        self.net = Positionwise(config["width"], config["inner"])
        self.norm_first = config.get("norm_first", False)
        self.norm_1, self.norm_2 = nn.LayerNorm(config["width"]), nn.LayerNorm(config["width"])

    def forward(self, x, mask=None):
        x = self.norm_1(x + self.attention(x, x, x, mask))
        return self.norm_2(x + self.net(x))


class EncoderOfHeads(nn.Module):
    """A stack of layers whose heads have modules of their own."""

    def __init__(self, num_heads, d_model, d_ff, num_layers):
        super().__init__()
        sizes = {"heads": num_heads, "width": d_model, "inner": d_ff}
        self.layers = nn.ModuleList([LayerOfHeads(sizes) for _ in range(num_layers)])

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask)
        return x


class PlainEncoder(nn.Module):
    """Post-norm layers, nothing after them."""

    def __init__(self, num_layers, **layer_args):
        super().__init__()
        self.layers = nn.ModuleList([LibraryLayer(**layer_args) for _ in range(num_layers)])

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x


class NormedDecoder(nn.Module):
    """A stack of decoder layers with a final norm."""

    def __init__(self, d_model, heads, d_ff, N):
        super().__init__()
        layer = PreNormDecoderLayer(d_model, heads, d_ff)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(N)])
        self.norm = OwnNorm(d_model)

    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        for layer in self.layers:
            x = layer(x, memory, src_mask, tgt_mask)
        return self.norm(x)


class StackOf(nn.Module):
    """A stack without a final norm."""

    def __init__(self, kind, n_layers, d_model, heads, d_ff):
        super().__init__()
        self.layers = nn.ModuleList([kind(d_model, heads, d_ff) for _ in range(n_layers)])

    def forward(self, x, *others):
        for layer in self.layers:
            x = layer(x, *others)
        return x


class TiedStacks(nn.Module):
    """Both stacks have classes of their own, and the output layer has the weight of both tables."""

    def __init__(self, vocab_size, embed_size, heads, ff_size, n_layers):
        super().__init__()
        self.words, self.other_words = (nn.Embedding(vocab_size, embed_size) for _ in range(2))
        self.places = Sinusoids(embed_size)
        self.encoder = StackOf(LibraryFreeLayer, n_layers, embed_size, heads, ff_size)
        self.decoder = StackOf(LibraryFreeDecoder, n_layers, embed_size, heads, ff_size)
        self.out = nn.Linear(embed_size, vocab_size)
        self.words.weight = self.other_words.weight = self.out.weight

    def forward(self, src, tgt):
        src_mask = (src != 0)[:, None, None, :]
        causal = torch.ones(tgt.shape[1], tgt.shape[1], device=tgt.device).tril().bool()
        memory = self.encoder(self.places(self.words(src)), src_mask)
        y = self.places(self.other_words(tgt))
        return self.out(self.decoder(y, memory, src_mask, (tgt != 0)[:, None, None, :] & causal))


class TranslationModel(nn.Module):
    """From ids to logits, with masks of its own."""

    def __init__(self, src_vocab_size, tgt_vocab_size, d_model, num_heads, num_layers, d_ff, max_seq_length=64):
        super().__init__()
        self.encoder_embedding = nn.Embedding(src_vocab_size, d_model)
        self.decoder_embedding = nn.Embedding(tgt_vocab_size, d_model)
        self.positional_encoding = Sinusoids(d_model, max_len=max_seq_length)
        self.encoder_layers = nn.ModuleList([LibraryFreeLayer(d_model, num_heads, d_ff) for _ in range(num_layers)])
        self.decoder_layers = nn.ModuleList([LibraryFreeDecoder(d_model, num_heads, d_ff) for _ in range(num_layers)])
        self.fc = nn.Linear(d_model, tgt_vocab_size)

    def forward(self, src, tgt, pad_id=0):
        src_mask = (src != pad_id)[:, None, None, :]
        causal = torch.ones(tgt.shape[1], tgt.shape[1], device=tgt.device).tril().bool()
        tgt_mask = (tgt != pad_id)[:, None, None, :] & causal
        x = self.positional_encoding(self.encoder_embedding(src))
        for layer in self.encoder_layers:
            x = layer(x, src_mask)
        y = self.positional_encoding(self.decoder_embedding(tgt))
        for layer in self.decoder_layers:
            y = layer(y, x, src_mask, tgt_mask)
        return self.fc(y)


class LibraryFreeLayer(nn.Module):
    """Post-norm encoder layer."""

    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.self_attn = CourseAttention(d_model, num_heads)
        self.feed_forward = Positionwise(d_model, d_ff)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, mask):
        x = self.norm1(x + self.self_attn(x, x, x, mask))
        return self.norm2(x + self.feed_forward(x))


class LibraryFreeDecoder(nn.Module):
    """Post-norm decoder layer."""

    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.self_attn = CourseAttention(d_model, num_heads)
        self.cross_attn = CourseAttention(d_model, num_heads)
        self.feed_forward = Positionwise(d_model, d_ff)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))

    def forward(self, x, enc_output, src_mask, tgt_mask):
        x = self.norm1(x + self.self_attn(x, x, x, tgt_mask))
        x = self.norm2(x + self.cross_attn(enc_output, enc_output, x, src_mask))
        return self.norm3(x + self.feed_forward(x))


class TwoLimits(TranslationModel):
    """Source and target have a limit and a padding each."""

    def __init__(self, src_vocab, tgt_vocab, src_seq_len, tgt_seq_len, src_pad, tgt_pad, d_model, h, N, d_ff):
        super().__init__(src_vocab, tgt_vocab, d_model, h, N, d_ff, max(src_seq_len, tgt_seq_len))
        if not (src_pad < src_vocab and tgt_pad < tgt_vocab):
            raise ValueError("the padding is no word")


class SharedTable(nn.Module):
    """One table for both languages and for the output; the masks are given."""

    def __init__(self, vocab_size, d_model, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward):
        super().__init__()
        self.embed = ScaledEmbedding(vocab_size, d_model)
        self.pos = Sinusoids(d_model, max_len=64)
        self.encoder = nn.ModuleList([PreNormLayer(d_model, nhead, dim_feedforward) for _ in range(num_encoder_layers)])
        self.decoder = nn.ModuleList(
            [PreNormDecoderLayer(d_model, nhead, dim_feedforward) for _ in range(num_decoder_layers)]
        )
        self.enc_norm, self.dec_norm = OwnNorm(d_model), OwnNorm(d_model)

    def forward(self, source, target, source_mask, target_mask):
        memory, x = self.pos(self.embed(source)), self.pos(self.embed(target))
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        memory = self.enc_norm(memory)
        for layer in self.decoder:
            x = layer(x, memory, source_mask, target_mask)
        return self.dec_norm(x) @ self.embed.lut.weight.T


class CausalLayerOfHeads(nn.Module):
    """A decoder layer of such heads without a mask of the memory; with this eps, all masks that it gets have two axes."""

    def __init__(self, num_heads, d_model, d_ff):
        super().__init__()
        self.attention, self.cross = HeadList(num_heads, d_model), HeadList(num_heads, d_model)
        self.net = Positionwise(d_model, d_ff)
        self.norm_1, self.norm_2, self.norm_3 = (nn.LayerNorm(d_model, eps=1e-6) for _ in range(3))

    def forward(self, decoder_input, encoder_output, self_attn_mask=None):
        x = self.norm_1(decoder_input + self.attention(decoder_input, decoder_input, decoder_input, self_attn_mask))
        x = self.norm_2(x + self.cross(x, encoder_output, encoder_output))
        return self.norm_3(x + self.net(x))


class NetWithNorm(nn.Module):
    """A feed-forward network with its residual and its norm."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


class NormsMadeLast(nn.Module):
    """An encoder layer whose network, with a norm of its own, is made before the norm that comes first."""

    def __init__(self, d_model, nhead, dim_feedforward):
        super().__init__()
        self.net = NetWithNorm(d_model, dim_feedforward)
        self.attend, self.attended = CourseAttention(d_model, nhead), nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        return self.net(self.attended(x + self.attend(x, x, x, mask)))
