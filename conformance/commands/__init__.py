"""The command line: one file for each command, which is imported when the command is run."""

from typing import Final

__all__ = ["GROUPS", "SUMMARIES"]

#: The commands, with the first sentence of their help. `goldformer --help` prints it without importing them.
SUMMARIES: Final = {
    "assignment": "Write an assignment for a course, and check it.",
    "baseline": "Record an implementation's results, and say later what moved.",
    "check": "Check an implementation.",
    "compare": "Run the same checks on several implementations.",
    "coverage": "Show which rows of the documents no check covers.",
    "derive": "Derive golden values, or prove that no value moved.",
    "explain": "Explain an id: case, clause, component, mistake and so on.",
    "export": "Write every case as a plain call.",
    "grade": "Grade a class.",
    "infer": "Infer the adapter of a class or a function.",
    "lint": "Check the spec against itself.",
    "mistakes": "List the known mistakes, or prove that the suite catches them.",
    "new": "Write a commented adapter to start from.",
    "schema": "Print the JSON Schema of a kind of file.",
    "serve": "Answer for a Python adapter in the protocol.",
    "trace": "Compare two models, layer by layer.",
}

#: The commands by the people who need them.
GROUPS: Final = {
    "Check": ("check", "compare", "explain", "infer", "new", "trace", "baseline"),
    "Grade": ("assignment", "grade"),
    "Plumbing: other programs, and the spec": ("serve", "export", "schema", "derive", "lint", "coverage", "mistakes"),
}
