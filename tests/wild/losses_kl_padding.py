# deserves: variant smoothing_denominator=others
"""Training utilities as in annotated notebooks: smoothing as a divergence with the padding column zeroed, log-softmax outputs."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ARRAYS = "torch"
NAME = "smoothing with a divergence"


class LabelSmoothing(nn.Module):
    """Keeps the smoothed targets in true_dist; padding_idx None keeps every column."""

    def __init__(self, size, padding_idx=None, smoothing=0.0):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="sum")
        self.padding_idx = padding_idx
        self.confidence = 1.0 - smoothing
        self.smoothing = smoothing
        self.size = size
        self.true_dist = None

    def smooth(self, target, dtype):
        others = self.size - 1 if self.padding_idx is None else self.size - 2
        true_dist = torch.full((len(target), self.size), self.smoothing / others, dtype=dtype, device=target.device)
        true_dist.scatter_(1, target.unsqueeze(1), self.confidence)
        if self.padding_idx is not None:
            true_dist[:, self.padding_idx] = 0
            rows = torch.nonzero(target == self.padding_idx).squeeze(-1)
            true_dist.index_fill_(0, rows, 0.0)
        return true_dist

    def forward(self, x, target):
        assert x.size(1) == self.size
        self.true_dist = self.smooth(target, x.dtype)
        return self.criterion(x, self.true_dist.clone().detach())


class Generator(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab)

    def forward(self, x):
        return F.log_softmax(self.proj(x), dim=-1)


class SimpleLossCompute:
    """The loss of a batch divided by its number of words."""

    def __init__(self, criterion):
        self.criterion = criterion

    def __call__(self, log_probs, y, norm):
        flat = log_probs.contiguous().view(-1, log_probs.size(-1))
        return self.criterion(flat, y.contiguous().view(-1)) / norm


# The adapter.


def label_smoothing(target, *, smoothing):
    if not 0 <= smoothing <= 1:
        raise ValueError("smoothing: from 0 to 1")
    words = target.argmax(dim=-1)
    if not torch.equal(F.one_hot(words, target.size(-1)).to(target), target):
        raise NotImplementedError("one-hot targets alone")
    if target.size(-1) == 1:
        raise NotImplementedError("two words or more")
    criterion = LabelSmoothing(target.size(-1), smoothing=smoothing)
    return criterion.smooth(words.flatten(), target.dtype).view(target.shape)


def cross_entropy(logits, targets, *, pad_id):
    vocab = logits.size(-1)
    if logits.shape[:-1] != targets.shape:
        raise ValueError("targets: one for each row of logits")
    if vocab < 3 or not 0 <= pad_id < vocab:
        raise NotImplementedError("padding is a word of the vocabulary")
    criterion = LabelSmoothing(vocab, pad_id)
    loss = SimpleLossCompute(criterion)
    return loss(F.log_softmax(logits, dim=-1), targets, (targets != pad_id).sum())


def kl_divergence(target, logits):
    if target.shape != logits.shape:
        raise ValueError("target, logits: one shape")
    return nn.KLDivLoss(reduction="none")(F.log_softmax(logits, dim=-1), target).sum(dim=-1)


def output_probabilities(x, *, params):
    weight = params["w_vocab"]
    state = {"proj.weight": weight.mT, "proj.bias": params.get("b_vocab", weight.new_zeros(weight.size(1)))}
    with torch.device("meta"):
        module = Generator(*weight.shape)
    return torch.func.functional_call(module, state, (x,)).exp()


MISTAKES = {
    "divergence-arguments-swapped": (
        'nn.KLDivLoss(reduction="none")(F.log_softmax(logits, dim=-1), target)',
        'nn.KLDivLoss(reduction="none")(target.clamp(min=1e-9).log(), logits.softmax(-1))',
        "The divergence is that of the target from the prediction.",
        ("kl-reversed",),
    ),
    "criterion-averages": (
        'nn.KLDivLoss(reduction="sum")',
        'nn.KLDivLoss(reduction="mean")',
        "The divergence is a mean over all elements before it is divided by the number of words.",
        (),
    ),
    "scattered-along-batch": (
        "true_dist.scatter_(1, target.unsqueeze(1), self.confidence)",
        "true_dist.scatter_(1, target.flip(0).unsqueeze(1), self.confidence)",
        "The targets are written in reverse order.",
        (),
    ),
    "norm-counts-padding": (
        "targets, (targets != pad_id).sum())",
        "targets, targets.numel())",
        "The loss is divided by the number of all tokens, padding included.",
        ("loss-pad-denominator",),
    ),
    "log-softmax-over-tokens": (
        "return F.log_softmax(self.proj(x), dim=-1)",
        "return F.log_softmax(self.proj(x), dim=1)",
        "The softmax of the generator runs over the tokens.",
        (),
    ),
    "mass-shared-wrongly": (
        "self.size - 1 if self.padding_idx is None",
        "self.size - 2 if self.padding_idx is None",
        "The mass is shared among one word too few, so rows no longer sum to one.",
        (),
    ),
    "confidence-kept": (
        "self.confidence = 1.0 - smoothing",
        "self.confidence = 1.0",
        "The target keeps all its mass besides what the others get.",
        (),
    ),
    "mean-over-elements": (
        "target).sum(dim=-1)\n",
        "target).mean(dim=-1)\n",
        "The divergence is the mean over the words and not their sum.",
        ("kl-row-mean",),
    ),
}
