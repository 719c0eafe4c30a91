"""The adapter of the NumPy textbook."""

from typing import Final

from goldformer import __version__
from goldformer.adapters.textbook import *  # noqa: F403 - all that the textbook exports are components

NAME: Final = "textbook"
VERSION: Final = __version__
ARRAYS: Final = "numpy"
DTYPES: Final = ("float64", "float32", "float16")
