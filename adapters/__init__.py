"""Calls of implementations: the adapter protocol, finding and loading, and the built-in adapters."""

from goldformer.adapters.find import BUILT_IN, OF_LIBRARIES, find_adapter
from goldformer.adapters.protocol import DTYPES, Adapter, AdapterError

__all__ = ["BUILT_IN", "DTYPES", "OF_LIBRARIES", "Adapter", "AdapterError", "find_adapter"]
