"""Messages about unknown names, with a guess."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def describe_unknown(
    given: Iterable[object], known: Collection[str], option: str, *, every: bool = False
) -> str | None:
    """Return a message about the first unknown word, or None; `every` lists all known words.

    Known cases are looked up one by one; only an unknown one makes this read all files of cases, for a guess.
    """
    import difflib  # only on the way to an error

    for word in map(str, given):
        if word not in known:
            words = tuple(known)
            # People say sdpa for scaled_dot_product_attention.
            short = [known for known in words if "_" in known and word == "".join(part[0] for part in known.split("_"))]
            close = short or difflib.get_close_matches(word, words, n=1)
            guess = f"did you mean {close[0]}?" if close else ""
            listed = words if every else () if close else words[:12]
            there_are = f"known are {', '.join(listed)}" + ("…" * (len(words) > len(listed))) if listed else ""
            # Build servers run commands at the start of a line.
            return f"{option} {' '.join(word.splitlines())}: {' '.join(filter(None, (guess, there_are)))}"
    return None
