"""Whole models, each written by another hand: no two share code, and none calls the reference or the textbook."""
