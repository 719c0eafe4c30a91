"""The adapter of the NumPy textbook."""

from importlib.metadata import version
from typing import Final

from goldformer.adapters.textbook import __getattr__ as __getattr__  # noqa: PLC0414 - all of it is the adapter's

NAME: Final = "textbook"
VERSION: Final = version("goldformer")
ARRAYS: Final = "numpy"
DTYPES: Final = ("float64", "float32", "float16")
