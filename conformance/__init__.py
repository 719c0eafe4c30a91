"""Is it right? The pytest suite, the engine it shares with the command line, and their reports."""
