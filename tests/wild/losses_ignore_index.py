# deserves: correct
"""The loss and target helpers of a training script: cross-entropy that ignores padding, shifted targets, smoothed one-hot rows."""

import torch
import torch.nn.functional as F

ARRAYS = "torch"
NAME = "training helpers"


def make_batch(targets, bos, length=None):
    """Shift the target to what the decoder reads: moved by one place behind the first word."""
    start = torch.full_like(targets[:, :1], bos)
    return torch.cat([start, targets[:, :-1]], dim=1)


def sequence_loss(logits, labels, pad):
    """Mean over the words that are no padding; also the loss of each word."""
    vocab = logits.size(-1)
    each = F.cross_entropy(logits.reshape(-1, vocab), labels.reshape(-1), ignore_index=pad, reduction="none")
    mask = labels.reshape(-1).ne(pad)
    return each.sum() / mask.sum(), each.view_as(labels)


def to_one_hot(labels, vocab):
    rows = torch.zeros(*labels.shape, vocab, dtype=torch.long, device=labels.device)
    return rows.scatter(-1, labels.unsqueeze(-1), 1)


def smooth_rows(one_hot, eps):
    classes = one_hot.size(-1)
    return one_hot * (1 - eps) + eps / classes


def soft_target_loss(log_probs, soft):
    """Divergence of a prediction, given as log-probabilities, from soft targets."""
    return F.kl_div(log_probs, soft, reduction="none").sum(-1)


def pad_batch(x, length):
    if length < 0:
        raise ValueError("length: negative")
    if x.size(1) >= length:
        return x[:, :length].clone()
    return F.pad(x, (0, 0, 0, length - x.size(1)))


def init_weight(like, generator):
    fan_in, fan_out = like.shape
    bound = (6 / (fan_in + fan_out)) ** 0.5
    return torch.empty_like(like).uniform_(-bound, bound, generator=generator)


def drop(x, p, training, generator):
    if not 0 <= p <= 1:
        raise ValueError("rate: from 0 to 1")
    if not training or p == 0:
        return x
    keep = torch.rand(x.shape, generator=generator, device=x.device) >= p
    if p == 1:
        return x * 0
    return x * keep.to(x.dtype) / (1 - p)


# The adapter.


def shift_right(ids, *, bos_id):
    return make_batch(ids, bos_id)


def cross_entropy(logits, targets, *, pad_id):
    if logits.shape[:2] != targets.shape:
        raise ValueError("targets: one for each row of logits")
    vocab = logits.size(-1)
    if targets.min() < 0 or targets.max() >= vocab:
        raise ValueError("targets: ids below the size of the vocabulary")
    return sequence_loss(logits, targets, pad_id)


def one_hot(ids, *, vocab):
    return to_one_hot(ids, vocab)


def label_smoothing(target, *, smoothing):
    if not 0 <= smoothing <= 1:
        raise ValueError("smoothing: from 0 to 1")
    return smooth_rows(target, smoothing)


def kl_divergence(target, logits):
    if target.shape != logits.shape:
        raise ValueError("target: the shape of logits")
    return soft_target_loss(F.log_softmax(logits, dim=-1), target)


def pad_or_truncate(x, *, length):
    return pad_batch(x, length)


def xavier_uniform(like, *, seed):
    return init_weight(like, torch.Generator(device=like.device).manual_seed(seed))


def dropout(x, *, rate, training, seed):
    return drop(x, rate, training, torch.Generator(device=x.device).manual_seed(seed))


def padding_mask(ids, *, pad_id):
    return ids.ne(pad_id)[:, None, None]


def causal_mask(*, q_seq, kv_seq):
    return torch.ones(q_seq, kv_seq).tril().bool()


MISTAKES = {
    "mean-over-all": (
        "each.sum() / mask.sum(), each.view_as(labels)",
        "each.mean(), each.view_as(labels)",
        "The loss is divided by the number of all words, padding included.",
        ("loss-pad-denominator",),
    ),
    "ignore-index-forgotten": (
        'ignore_index=pad, reduction="none"',
        'reduction="none"',
        "Padding adds to the loss of the words.",
        ("loss-pad-counted",),
    ),
    "shifted-left": (
        "torch.cat([start, targets[:, :-1]], dim=1)",
        "torch.cat([targets[:, 1:], start], dim=1)",
        "The target is moved to the left, so that the decoder reads what it should predict.",
        (),
    ),
    "smoothing-on-top": (
        "one_hot * (1 - eps) + eps / classes",
        "one_hot * (1 - eps) + (1 - one_hot) * eps / classes",
        "The target word gets no part of the mass that is shared, and rows sum to less than one.",
        (),
    ),
    "padded-in-front": (
        "F.pad(x, (0, 0, 0, length - x.size(1)))",
        "F.pad(x, (0, 0, length - x.size(1), 0))",
        "The zeros are put before the sequence.",
        (),
    ),
    "bound-of-normal": (
        "(6 / (fan_in + fan_out)) ** 0.5",
        "(2 / (fan_in + fan_out)) ** 0.5",
        "The bound is the standard deviation of the normal variant.",
        ("xavier-std-as-bound",),
    ),
    "not-scaled-up": (
        "return x * keep.to(x.dtype) / (1 - p)",
        "return x * keep.to(x.dtype)",
        "What is kept is not scaled up.",
        ("dropout-no-rescale",),
    ),
    "mask-of-zero": (
        "return ids.ne(pad_id)[:, None, None]",
        "return ids.ne(0)[:, None, None]",
        "Padding is always taken to be the id nought.",
        ("padding-idx",),
    ),
}
