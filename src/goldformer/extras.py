"""How to install what is missing. goldformer is not on PyPI yet, so a hint names the packages that an extra needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The packages of each extra, as pyproject.toml lists them; those of "" are what goldformer needs without any extra.
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
    "examples": ("matplotlib",),
}  # fmt: skip


def install_hint(extra: str, pip: str = "pip") -> str:
    """Return the command that installs what an extra needs."""
    return f"{pip} install {' '.join(PACKAGES[extra])}"
