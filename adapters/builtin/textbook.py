"""The adapter of the NumPy textbook."""

from typing import Final

from goldformer import __version__
from goldformer.adapters.textbook import __getattr__ as __getattr__  # noqa: PLC0414 - all of it is the adapter's

NAME: Final = "textbook"
VERSION: Final = __version__
ARRAYS: Final = "numpy"
DTYPES: Final = ("float64", "float32", "float16")
