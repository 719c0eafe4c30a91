"""A made-up spec of one component, in which everything is covered."""

from __future__ import annotations

from pathlib import Path

from goldformer.spec import load_spec
from goldformer.spec.making.promises import write_stamps


def write_small_spec(root: Path) -> None:
    """Write the spec into a folder."""
    for name, text in SMALL_SPEC.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    write_stamps(load_spec.__wrapped__(root))


#: R1 is named by a case and by its clause, R2 by a clause alone, R3 by an erratum alone; sm-shape is in all of them.
SMALL_SPEC = {
    "version.json": '{"editions": {"small": {"version": "1.0", "text": "transformer.md", "components": {}}}}',
    "documents.yaml": """\
documents:
  - id: notes
    title: 笔记
    english: Notes
    kind: article
    about: Softmax in brief.
    rows:
      - {id: R1, section: "1", says: Softmax makes rows sum to 1.}
      - {id: R2, section: "2 | 3", says: No row is empty.}
      - {id: R3, section: last, says: The mean is 1.}
  - id: letters
    title: Letters
    english: Letters
    kind: article
    about: About shifts.
    rows:
      - {id: L1, section: first, says: Shifts do not matter.}
  - id: paper
    title: On Softmax
    english: On Softmax
    kind: paper
    about: Cited by section.
    rows: []
""",
    "transformer.md": """\
# Softmax

### SM-1 · MUST · The formula: e^x over Σ e^x, of [n]

A softmax.

Source: notes R1; paper 3.2.

### SM-2 · MUST · Empty rows – none at all – are refused

No elements, no result.

Source: notes R2; paper 3.10.

### SM-3 · MUST · A shift changes nothing

Of every element.

Source: letters L1; paper 3.2.1.

### SM-4 · CONVENTION · √n

Or not.

Source: this spec.

### CALL-1 · MUST · Shapes

Every call has them.

Source: this spec.
""",
    "contracts/softmax.yaml": """\
component: softmax
title: Softmax
formula: exp(s_j) / Σ_k exp(s_k)
depends_on: []
inputs:
  scores: {kind: float, shape: ["...", n]}
outputs:
  output: {kind: float, shape: ["...", n]}
""",
    "cases/softmax.yaml": """\
component: softmax
cases:
  - id: sm-five
    title: Five elements
    clauses: [SM-1]
    source: derived
    inputs:
      scores: {fill: 0, shape: [5]}
    expect: {output: shape}
  - id: sm-shape
    title: Two rows of three, <eos> *included*
    clauses: [SM-1]
    source: {document: notes, rows: [R1]}
    inputs:
      scores: {fill: 0, shape: [2, 3]}
    expect: {output: shape}
  - id: sm-empty
    title: No elements
    clauses: [SM-2]
    source: derived
    base: sm-shape
    change:
      inputs:
        scores: {fill: 0, shape: [2, 0]}
    expect: {error: scores}
""",
    "properties.yaml": """\
properties:
  - {id: sm-shift, component: softmax, title: a shift changes nothing, clauses: [SM-3]}
  - {id: any-shape, component: "*", title: shapes are kept, clauses: [CALL-1]}
""",
    "families.yaml": "families: []\n",
    "conventions.yaml": """\
conventions:
  - {id: root, title: Which root, clause: SM-4, default: none, options: {none: n, square: "√n | n"}}
""",
    "mistakes.yaml": "mistakes: []\n",
    "errata.yaml": """\
errata:
  - id: notes-mean
    document: notes
    rows: [R3]
    section: last
    printed: the mean is 1
    correct: the sum is 1
    why: The mean is 1/n.
    clauses: [SM-1]
    proof: [sm-shape]
""",
}
