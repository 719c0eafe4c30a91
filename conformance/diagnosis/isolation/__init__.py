"""The place of a mistake that nothing known explains, found by calls that leave only one part acting."""

from goldformer.conformance.diagnosis.isolation.search import isolate

__all__ = ["isolate"]
