"""The catalogued mistakes, each as an implementation that makes it: the NumPy textbook with a step replaced.

Those of devices, of memory and of autograd are the bundled reference with one component replaced.
"""

from goldformer.conformance.diagnosis.mistakes.registry import (
    ON_PURPOSE,
    Mistaken,
    all_implementations,
    implementations,
    torch_implementations,
)

__all__ = ["ON_PURPOSE", "Mistaken", "all_implementations", "implementations", "torch_implementations"]
