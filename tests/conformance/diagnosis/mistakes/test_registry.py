"""The registry of mistakes."""

from __future__ import annotations

import subprocess
import sys

LIST = """
import goldformer.conformance.diagnosis.mistakes.decoding
from goldformer.conformance.diagnosis.mistakes import implementations
print(*dict.fromkeys(made.module for made in implementations().values()))
"""


def test_the_order_of_mistakes_is_that_of_the_catalogue_whichever_module_is_imported_first():
    listed = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True, timeout=60, check=True).stdout
    assert listed.split() == [
        "attention", "positions", "heads", "layers", "norms", "groups", "transformer", "losses", "decoding",
        "randomness", "half_types", "gradients",
    ]  # fmt: skip
