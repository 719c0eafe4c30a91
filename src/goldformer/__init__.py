"""Reference-compliance suite and golden-value spec for the Transformer."""

from typing import TYPE_CHECKING, Any

from goldformer.exports import load_on_use

if TYPE_CHECKING:
    from goldformer.conformance.api.checking import check
    from goldformer.conformance.api.expectation import assert_correct, expected
    from goldformer.conformance.api.report import NonConformance, Report
    from goldformer.conformance.trace.arrays import trace_arrays
    from goldformer.conformance.trace.models import trace

    __version__: str

__all__ = ["NonConformance", "Report", "__version__", "assert_correct", "check", "expected", "trace", "trace_arrays"]

_load, __dir__ = load_on_use(
    __name__,
    {
        "conformance.api.checking": ("check",),
        "conformance.api.expectation": ("assert_correct", "expected"),
        "conformance.api.report": ("NonConformance", "Report"),
        "conformance.trace.arrays": ("trace_arrays",),
        "conformance.trace.models": ("trace",),
    },
)


def __getattr__(name: str) -> Any:
    """Import a public name when it is used; importlib.metadata, which has the version, takes longer than --help."""
    if name == "__version__":
        from importlib.metadata import version

        return version("goldformer")
    return _load(name)
