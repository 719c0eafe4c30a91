"""Hints to install missing packages. goldformer is not on PyPI yet, so a hint names the packages of an extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

#: The packages of each extra, as in pyproject.toml; "" holds those that goldformer needs without an extra.
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        "click", "hypothesis", "jinja2", "nbformat", "numpy", "pydantic", "pytest", "python-flint", "pyyaml", "rich",
        "safetensors", "threadpoolctl",
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
    "triton": ("triton", "torch"),
    "cluster": ("distributed",),
    "examples": ("matplotlib",),
}  # fmt: skip

#: The packages of modules that have another name.
_OTHER_NAMES: Final[Mapping[str, str]] = {
    "PIL": "pillow", "cv2": "opencv-python", "flint": "python-flint", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip


def name_package(module: str) -> str:
    """Return the package that installs a module, or a module in it."""
    top = module.partition(".")[0]
    return _OTHER_NAMES.get(top, top)


def list_missing() -> list[str]:
    """Return the packages that goldformer needs and that are not installed, as in an environment of another version."""
    modules = {package: module for module, package in _OTHER_NAMES.items()}
    return [package for package in PACKAGES[""] if find_spec(modules.get(package, package)) is None]


def describe_missing(packages: Sequence[str]) -> str:
    """Say what is not installed, and how to install it."""
    return f"goldformer needs {', '.join(packages)}, not installed here: pip install {' '.join(packages)}"


def install_hint(extra: str, pip: str = "pip") -> str:
    """Return the command that installs the packages of an extra."""
    return f"{pip} install {' '.join(PACKAGES[extra])}"
