"""Diagnosis: explain failures, after judging, over all of them together."""
