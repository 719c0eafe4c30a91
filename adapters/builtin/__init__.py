"""The built-in adapters; adapters/find.py names them."""
