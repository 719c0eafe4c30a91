"""Every transcript: the commands print what it shows. `python -m tests.printed` writes them again."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from transcripts import PRINTED, run_transcript


@pytest.mark.parametrize("path", sorted(PRINTED.glob("*.txt")), ids=lambda path: path.stem)
def test_a_transcript_is_what_the_commands_print(path: Path) -> None:
    shown, printed = path.read_text(encoding="utf-8"), run_transcript(path)
    difference = "\n".join(
        unified_diff(shown.splitlines(), printed.splitlines(), path.name, "printed now", lineterm="")
    )
    assert not difference, f"{difference}\nif this is meant: .venv/bin/python -m tests.printed {path.stem}"
