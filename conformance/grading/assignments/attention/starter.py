"""Attention: replace every `raise NotImplementedError`, and hand in this file as submission.py.

Shapes are written like (…, q_seq, d_k), where … stands for any leading axes: none, the batch, or batch and heads.
Masks are boolean, and True means: may attend. Results have the dtype of the inputs.

Forbidden, because you are to write it yourself: torch.softmax and torch.log_softmax, the same in torch.special.softmax,
torch.special.log_softmax, torch.nn.functional.softmax, torch.nn.functional.log_softmax, torch.Tensor.softmax and
torch.Tensor.log_softmax, torch.nn.functional.scaled_dot_product_attention,
torch.nn.functional.multi_head_attention_forward, torch.nn.Softmax, torch.nn.MultiheadAttention. In grading a call of
them raises an error.
"""

from torch import Tensor, nn


def softmax(scores: Tensor) -> Tensor:
    """Compute the softmax over the last axis, also for scores in the thousands.

    scores: (…, n). Returns (…, n): positive numbers, each row adds up to 1.
    """
    raise NotImplementedError


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend as in “Attention Is All You Need”, section 3.2.1.

    query: (…, q_seq, d_k), key: (…, kv_seq, d_k), value: (…, kv_seq, d_v).
    mask: boolean, broadcasts to (…, q_seq, kv_seq), or None. A key whose mask is False gets the weight 0.
    Returns the output (…, q_seq, d_v) and the weights (…, q_seq, kv_seq).
    """
    raise NotImplementedError


def causal_mask(q_seq: int, kv_seq: int) -> Tensor:
    """Return the mask in which query i may attend to the keys 0, …, i.

    Returns a boolean (q_seq, kv_seq).
    """
    raise NotImplementedError


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Return the mask of the tokens that are no padding, in a shape that broadcasts over heads and queries.

    ids: integers (batch, seq). Returns a boolean (batch, 1, 1, seq).
    """
    raise NotImplementedError


class MultiHeadAttention(nn.Module):
    """Attention with several heads, section 3.2.2; a head is d_model // num_heads wide.

    Keep the names of the four layers: their weights are set from outside.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Project, split into heads, attend, put the heads next to each other, project.

        query: (batch, q_seq, d_model), key and value: (batch, kv_seq, d_model).
        mask: boolean, broadcasts to (batch, num_heads, q_seq, kv_seq), or None.
        Returns the output (batch, q_seq, d_model) and the weights (batch, num_heads, q_seq, kv_seq).
        """
        raise NotImplementedError
