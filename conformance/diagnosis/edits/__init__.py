"""Slips as edits of a formula: recorded as a graph, changed in one operation or step, generated with sentences."""
