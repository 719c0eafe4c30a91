"""Why did it fail? Runs after judging, over all failures together."""
