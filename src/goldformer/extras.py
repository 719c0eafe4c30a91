"""Hints to install missing packages. goldformer is not on PyPI yet, so a hint names the packages of an extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The packages of each extra, as in pyproject.toml; "" holds those that goldformer needs without an extra.
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        "click", "hypothesis", "jinja2", "numpy", "pydantic", "pytest", "pyyaml", "rich", "safetensors",
        "threadpoolctl",
    ),
    "torch": ("torch",),
    "jax": ("jax",),
    "flax": ("flax",),
    "equinox": ("equinox",),
    "keras": ("keras", "torch"),
    "hugging-face": ("transformers", "torch"),
    "onnxruntime": ("onnx", "onnxruntime"),
    "onnx": ("onnx",),
    "x-transformers": ("x-transformers", "torch"),
    "tinygrad": ("tinygrad",),
    "derive": ("python-flint",),
    "cluster": ("distributed",),
    "notebook": ("nbformat",),
    "examples": ("matplotlib",),
}  # fmt: skip


def install_hint(extra: str, pip: str = "pip") -> str:
    """Return the command that installs the packages of an extra."""
    return f"{pip} install {' '.join(PACKAGES[extra])}"
