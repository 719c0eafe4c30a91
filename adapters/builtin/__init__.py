"""The adapters that come with goldformer; adapters/find.py gives them their names."""
