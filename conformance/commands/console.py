"""The two consoles of the command line, and how it says that something is unusable."""

from __future__ import annotations

from typing import Final

from rich.console import Console

#: Exit statuses, as --help documents them.
OK: Final = 0
FAILS: Final = 1
UNUSABLE: Final = 2

out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def unusable(message: str) -> int:
    """Say why nothing could be done."""
    err.print(f"goldformer: {message}", style="red", markup=False)
    return UNUSABLE


def words(given: tuple[str, ...]) -> tuple[str, ...]:
    """Options that may be repeated or comma-separated."""
    return tuple(word for text in given for word in text.split(",") if word)


def unknown(given: tuple[str, ...], known: tuple[str, ...], option: str) -> str | None:
    """What to say of the first word that is not known, or None."""
    import difflib  # only on the way to an error

    for word in given:
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            guess = (
                f"did you mean {close[0]}?"
                if close
                else f"known are {', '.join(known[:12])}" + ("…" * (len(known) > 12))
            )
            return f"{option} {word}: {guess}"
    return None
