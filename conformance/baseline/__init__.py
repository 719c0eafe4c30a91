"""Baselines: what an implementation gives today, recorded, and what has moved since, by how much and why."""
