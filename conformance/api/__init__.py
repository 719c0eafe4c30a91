"""The Python interface, for notebooks and other test suites: `goldformer.check`, `expected`, `assert_correct`."""
