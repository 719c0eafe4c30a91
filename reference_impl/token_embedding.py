"""Token embedding: the row of a table for every id."""

import torch
from torch import Tensor, nn

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._building import build
from goldformer.reference_impl._checks import (
    check_ids,
    check_ids_in_table,
    check_int,
    check_positive_int,
    check_same_device,
    check_tensors,
)


def token_embedding(ids: Tensor, table: Tensor, *, fixed_id: int | None = None) -> Tensor:
    """Look up the row of the table that each id names.

    Formula:  output[b, t] = table[ids[b, t]], without the factor √d_model of the paper's section 3.4:
              the documents do not have it
    Shapes:   ids (batch, seq), table (vocab, d_model) → (batch, seq, d_model)
    Errors:   TypeError unless ids are int64 or int32 and the table is floating point; ValueError for other
              shapes; IndexError for an id outside 0 … vocab − 1, naming the first (not under torch.compile)
    Source:   walkthrough 2; paper, section 3.4

    The positions of ``fixed_id`` add nothing to the gradient of the table, as with the padding_idx of nn.Embedding.
    """
    if fixed_id is not None:
        check_int("fixed_id", fixed_id)
    return build(TokenEmbedding, table=table, fixed_id=fixed_id).forward(ids)


class TokenEmbedding(nn.Module):
    """A table of ``vocab`` trained rows, started standard normal like nn.Embedding.

    Parameters: table (vocab, d_model). The row of ``fixed_id`` stays as it is started.
    """

    def __init__(
        self,
        vocab: int,
        d_model: int,
        *,
        fixed_id: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("vocab", vocab)
        check_positive_int("d_model", d_model)
        if fixed_id is not None:
            check_int("fixed_id", fixed_id)
        self.fixed_id = fixed_id
        self.table = nn.Parameter(torch.randn(vocab, d_model, device=device, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ids (batch, seq) as (batch, seq, d_model)."""
        self._check_input(ids)

        return functional.token_embedding(ids, self.table, self.fixed_id)  # (batch, seq, d_model)

    def _check_input(self, ids: Tensor) -> None:
        """Refuse arguments that do not fit the parameters."""
        check_ids("ids", ids)
        check_tensors({"table": (self.table, "vocab d_model")})
        check_same_device("ids", ids, "table", self.table)
        # Python's indexing would take −1 for the last row.
        check_ids_in_table("ids", ids, self.table.shape[0])
