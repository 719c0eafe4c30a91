"""The dropout of the modules, from PyTorch's own random numbers."""

from torch import Tensor, nn

from goldformer.reference_impl._checks import check_fraction
from goldformer.reference_impl._random import drop


def unchanged(x: Tensor) -> Tensor:
    """Return x as it is: the dropout of the function forms."""
    return x


class _Dropout(nn.Dropout):
    """PyTorch's dropout by the formula of ours, with PyTorch's own random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.p) if self.training else x


def make_dropout(p: float) -> nn.Dropout:
    """Make the dropout of a module: in training an entry is 0 with probability p, the rest grows by 1/(1 − p)."""
    check_fraction("dropout", p)
    return _Dropout(p)
