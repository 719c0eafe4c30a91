"""One module per command of the command line: `run` does it and gives the exit status."""
