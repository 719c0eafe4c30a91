"""Messages for tests: a process that is none, and messages that are spoilt in every way."""

from __future__ import annotations

import json
import os


class Answered:
    """In the place of goldformer.adapters.process.child.Child: a function answers, within this process."""

    def __init__(self, answer):
        self.owner = os.getpid()
        self.answer = answer

    def exchange(self, message, seconds):
        return self.answer(message)

    def stop(self):
        pass

    def end(self, grace=0.0):
        pass

    def stderr_tail(self):
        return ""


ODD = (
    None, True, False, 0, -1, 1.5, 1e308, 10**40, 2**63, "", "NaN", "Infinity", "AAAA", "é\ud800\x00\x1b[2J", [], {},
    [[]], [None], {"a": {}}, [1, "2"], "x" * 5000, list(range(100)),
)  # fmt: skip
PIECES = (
    b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\n", b"\r\n", b"null", b"NaN", b"-Infinity", b"1e999", b"-", b'"',
    b"\\", b"\\ud800", b"[" * 2000, b'{"a":' * 300, b"9" * 5000, b"}{", b"[]", b",", b":", b"//", b"'",
)  # fmt: skip


def spoilt(rng, line, others):
    """The line with one to three changes, to its bytes or to what it says."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice((_flip, _cut, _repeat, _reorder, _with_piece, _rephrase, _rephrase))
        line = change(rng, line) if line else rng.choice(others)
    return line


def _flip(rng, line):
    at = rng.randrange(len(line))
    return line[:at] + bytes([line[at] ^ 1 << rng.randrange(8)]) + line[at + 1 :]


def _cut(rng, line):
    start, end = sorted(rng.randrange(len(line) + 1) for _ in range(2))
    return rng.choice((line[:end], line[start:], line[:start] + line[end:]))


def _repeat(rng, line):
    start, end = sorted(rng.randrange(len(line) + 1) for _ in range(2))
    return rng.choice((line + line, line[:end] + line[start:]))


def _reorder(rng, line):
    a, b, c = sorted(rng.randrange(len(line) + 1) for _ in range(3))
    return line[:a] + line[b:c] + line[a:b] + line[c:]


def _with_piece(rng, line):
    start, end = sorted(rng.randrange(len(line) + 1) for _ in range(2))
    return line[:start] + rng.choice(PIECES) + rng.choice((line[start:], line[end:]))


def _rephrase(rng, line):
    """One of its values or keys is another, of any kind, or missing, or one is too many."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return line[:-1]
    homes = [home for home in _containers(message) if home]
    if not homes:
        return line + line
    home = rng.choice(homes)
    key = rng.choice(list(home)) if isinstance(home, dict) else rng.randrange(len(home))
    match rng.randrange(5):
        case 0:
            del home[key]
        case 1 if isinstance(home, dict):
            home[f"{key}x"] = home.pop(key)
        case 2:
            home[key] = [home[key]] * rng.randrange(3)
        case _:
            home[key] = rng.choice(ODD)
    return json.dumps(message, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass") + b"\n"


def _containers(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [value] if isinstance(value, (dict, list)) else []
    return found + [container for item in inner for container in _containers(item)]
