"""Grade a class of submissions. Sandboxed processes import this package too: it loads nothing itself."""
