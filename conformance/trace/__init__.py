"""Two models, layer by layer: where a port differs from the original, and why."""
