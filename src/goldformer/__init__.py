"""Reference-compliance suite and golden-value spec for the Transformer."""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: importlib.metadata costs more than all of --help."""
    if name == "__version__":
        from importlib.metadata import version

        return version("goldformer")
    raise AttributeError(name)
