"""The adapters of popular libraries, each an extra of its own; they only convert arguments and outputs."""
