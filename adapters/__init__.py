"""How an implementation is called: the adapter protocol, finding and loading, and the built-in adapters."""

from goldformer.adapters.find import BUILT_IN, find_adapter
from goldformer.adapters.protocol import DTYPES, Adapter, AdapterError

__all__ = ["BUILT_IN", "DTYPES", "Adapter", "AdapterError", "find_adapter"]
