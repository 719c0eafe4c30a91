"""Bridges: the components of goldformer, computed by functions that have the names and forms of a course or a site."""
