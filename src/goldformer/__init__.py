"""Reference-compliance suite and golden-value spec for the Transformer."""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """Look up the version when it is used: importlib.metadata takes longer than all of --help."""
    if name == "__version__":
        from importlib.metadata import version

        return version("goldformer")
    raise AttributeError(name)
