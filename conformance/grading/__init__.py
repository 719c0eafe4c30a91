"""Grading: many untrusted submissions, each run in a process of its own that is never told what is expected."""
