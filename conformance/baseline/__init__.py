"""Baselines: the recorded results of an implementation, and what moved since: by how much, and why."""
