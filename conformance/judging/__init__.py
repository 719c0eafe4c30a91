"""Is it right? Calls an implementation, compares the outcome with golden values, and decides."""
