"""Find submissions that share code: a hint for people, and no proof.

Winnowing (Schleimer, Wilkerson and Aiken, 2003): every sequence of tokens has a hash, and of the hashes in a window the
smallest is a fingerprint. Names, comments, docstrings and spacing make no difference. Code that was handed out, or that
many have, does not count.
"""

from __future__ import annotations

import hashlib
import io
import keyword
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from goldformer.conformance.grading.python_files import read_python_files

#: The tokens of a hash, and the hashes of a window: equal code of at least 22 tokens is always found.
_GRAM: Final = 15
_WINDOW: Final = 8
#: A fingerprint is common if more than 20 submissions have it, and more than a tenth of the class.
_MANY: Final = 20
_TENTH: Final = 10
#: The fewest fingerprints that a pair shares, and the smallest share of those of the smaller one.
_FEWEST: Final = 8
_LEAST: Final = 0.6
#: Tokens that do not count: comments and spacing.
_SILENT: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)

Fingerprints = frozenset[int]


@dataclass(frozen=True, slots=True)
class AlikePair:
    """Two submissions; `share` is the part of the fingerprints of the smaller one that both have."""

    first: str
    second: str
    shared: int
    share: float


def take_fingerprints(files: Mapping[str, bytes]) -> Fingerprints:
    """Return the fingerprints of the Python files of a submission."""
    found: set[int] = set()
    for _, source in read_python_files(files):
        found |= _winnow(list(_read_tokens(source.decode("utf-8", "replace"))))
    return frozenset(found)


def find_alike(prints: Mapping[str, Fingerprints], handed_out: Fingerprints) -> list[AlikePair]:
    """Return the pairs that share much, most first; `handed_out` are the fingerprints of starter and adapter."""
    own = {id_: found - handed_out for id_, found in sorted(prints.items())}
    holders: defaultdict[int, list[str]] = defaultdict(list)
    for id_, found in own.items():
        for fingerprint in found:
            holders[fingerprint].append(id_)
    many = max(_MANY, len(prints) // _TENTH)
    common = {fingerprint for fingerprint, ids in holders.items() if len(ids) > many}
    pairs: Counter[tuple[str, str]] = Counter()
    for fingerprint, ids in holders.items():
        if fingerprint not in common:
            pairs.update(combinations(ids, 2))
    sizes = {id_: len(found - common) for id_, found in own.items()}
    alike = (
        AlikePair(first, second, shared, shared / min(sizes[first], sizes[second]))
        for (first, second), shared in pairs.items()
        if shared >= _FEWEST
    )
    return sorted((p for p in alike if p.share >= _LEAST), key=lambda p: (-p.share, -p.shared, p.first, p.second))


def _read_tokens(text: str) -> Iterator[str]:
    """Yield the tokens that count, as far as the text is Python."""
    begins, dotted = True, False
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _SILENT:
                begins = begins or token.type != tokenize.COMMENT
                continue
            if token.type == tokenize.STRING:
                # A string at the beginning of a line is a docstring.
                if not begins:
                    yield "text"
            elif token.type == tokenize.NAME and not (dotted or keyword.iskeyword(token.string)):
                yield "name"
            else:
                yield token.string
            begins, dotted = False, token.string == "."
    except (tokenize.TokenError, SyntaxError, ValueError):
        return


def _winnow(tokens: list[str]) -> set[int]:
    hashes = [_hash(tokens[at : at + _GRAM]) for at in range(len(tokens) - _GRAM + 1)]
    windows: Iterable[list[int]] = (
        hashes[at : at + _WINDOW] for at in range(max(1, len(hashes) - _WINDOW + 1)) if hashes
    )
    return {min(window) for window in windows}


def _hash(tokens: list[str]) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(tokens).encode("utf-8", "replace"), digest_size=8).digest())
