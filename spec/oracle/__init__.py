"""The derivation of every golden value: one set of formulas, run on balls and on draws."""
