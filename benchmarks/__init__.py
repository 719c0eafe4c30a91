"""The benchmarks: the cost of the suite, of diagnosis and of grading."""
