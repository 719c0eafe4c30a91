"""The catalogued mistakes, each as an implementation that makes it: a right one with one step done otherwise.

Most are the NumPy textbook with one or two methods overridden. What NumPy cannot express (devices, dtypes
that promote, buffers, state) is the PyTorch reference with one function replaced.
"""

from goldformer.adapters.mistakes.registry import Kind, Mistaken, implementations, together

__all__ = ["Kind", "Mistaken", "implementations", "together"]
