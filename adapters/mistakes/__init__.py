"""The catalogued mistakes, each as an implementation that makes it: the NumPy textbook with a step done otherwise."""

from goldformer.adapters.mistakes.registry import Mistaken, implementations, together

__all__ = ["Mistaken", "implementations", "together"]
