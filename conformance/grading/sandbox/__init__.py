"""Start a process, isolate it, and exchange messages with it."""
