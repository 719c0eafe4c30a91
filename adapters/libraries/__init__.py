"""The adapters of libraries that people use, each an extra of its own: the mapping between two forms, and no more."""
