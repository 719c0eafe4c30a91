"""Run the command line as `python -m goldformer`."""

from goldformer.conformance.cli import main

# A spawned grading process imports this file again, under another name.
if __name__ == "__main__":
    main(prog_name="goldformer")
