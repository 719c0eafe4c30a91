"""Write what the loader says of each entry of the table: `python -m tests.refusals`. Read the difference in git."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Spoil a copy of the spec by each entry."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
    from goldformer.spec import ROOT
    from refusal_table import KEPT, list_said, read_table, spoil, write_table
    from spoiling import keep

    entries = read_table()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "spec"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("*.py", "__pycache__", "oracle"))
        keep(root, KEPT)
        for entry in entries:
            with spoil(root, entry):
                entry["said"] = list_said(root, entry)
    write_table(entries)


main()
