"""The place of a mistake that nothing known explains, and undeclared options, found by calls with silent parts."""

from goldformer.conformance.diagnosis.isolation.idle import find_idle
from goldformer.conformance.diagnosis.isolation.options import find_options
from goldformer.conformance.diagnosis.isolation.search import isolate

__all__ = ["find_idle", "find_options", "isolate"]
