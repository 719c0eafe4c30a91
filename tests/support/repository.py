"""Where the repository and the helpers of its tests lie."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
REPOSITORY = SUPPORT.parent.parent
