"""Right losses on torch, which named.yaml edits."""

import torch.nn.functional as F

ARRAYS = "torch"


class Smoother:
    def __init__(self, s):
        self.s = s

    def __call__(self, t):
        return (1.0 - self.s) * t + self.s / t.size(-1)


def label_smoothing(target, *, smoothing):
    return Smoother(smoothing)(target)


def cross_entropy(logits, targets, *, pad_id):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad_id)


def kl_divergence(target, logits):
    return F.kl_div(F.log_softmax(logits, -1), target, reduction="none").sum(-1)
