"""Checks of the spec as a whole, for `goldformer lint`, and what programs write of its data.

Nothing here is needed to read the spec or to judge an implementation.
"""
