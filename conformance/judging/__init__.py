"""Judging: call an implementation, compare the outcome with golden values, and decide."""
