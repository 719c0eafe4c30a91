"""The output layer: from the width of the model to the words of the vocabulary."""

from torch import Tensor

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._checks import check_tensors


def logits(x: Tensor, *, w_vocab: Tensor, b_vocab: Tensor | None = None) -> Tensor:
    """Score every word of the vocabulary at every position.

    Formula:  logits = x W_vocab + b_vocab
    Shapes:   x (batch, seq, d_model), w_vocab (d_model, vocab), b_vocab (vocab,) → (batch, seq, vocab)
    Errors:   TypeError unless all are floating-point tensors of one dtype; ValueError for shapes that do not fit
    Source:   n9 "Transformer模型构建", illustrated on the output layer; paper, section 3.4
    """
    check_tensors(
        {"x": (x, "batch seq d_model"), "w_vocab": (w_vocab, "d_model vocab")},
        optional={"b_vocab": (b_vocab, "vocab")},
    )
    return functional.affine(x, w_vocab, b_vocab)  # (batch, seq, vocab)


def output_probabilities(x: Tensor, *, w_vocab: Tensor, b_vocab: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Turn the scores of the words into probabilities; every word keeps some.

    Formula:  softmax(x W_vocab + b_vocab)
    Shapes:   as logits → probabilities, logits (batch, seq, vocab)
    Errors:   as logits
    Source:   illustrated on the output layer; paper, section 3.4
    """
    scores = logits(x, w_vocab=w_vocab, b_vocab=b_vocab)  # (batch, seq, vocab)
    return functional.softmax(scores), scores
