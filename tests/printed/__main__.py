"""Write transcripts from the product as it is: `python -m tests.printed [NAME…]`. Read the difference in git."""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main(names: list[str]) -> None:
    """Write those that are named, or all."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
    from transcripts import PRINTED, run_transcript

    for path in sorted(PRINTED.glob("*.txt")):
        if not names or path.stem in names:
            start = time.process_time()
            old, new = path.read_text(encoding="utf-8"), run_transcript(path)
            path.write_text(new, encoding="utf-8")
            did = "unchanged" if new == old else "written"
            print(f"{path.stem}: {did}, {time.process_time() - start:.1f} s of processor time")


main(sys.argv[1:])
