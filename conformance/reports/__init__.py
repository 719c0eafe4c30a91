"""The record of a run, and its renderers: text, Markdown, JSON, JUnit XML and HTML."""
