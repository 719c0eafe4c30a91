"""The statements of the documents that a failure is an instance of."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from goldformer.spec import Erratum, Spec


def find_printed(mistakes: Collection[str], component: str, failing: Collection[str], spec: Spec) -> list[Erratum]:
    """Return the errata with which code makes one of these mistakes, and whose proof of the component fails.

    If only properties prove an erratum, the mistake must be one of the component.
    """
    # What is found may also be a slip that no catalogue lists.
    own = {m for m in mistakes if m in spec.mistakes and spec.mistakes[m].component == component}
    found = []
    for erratum in spec.errata.values():
        made = {*mistakes}.intersection(erratum.mistakes)
        if made:
            cases = [id_ for id_ in erratum.proof if id_ in spec.cases]
            proof = [id_ for id_ in cases if spec.cases[id_].component == component]
            if not cases and own & made:
                proof = list(erratum.proof)
            if proof and {*failing}.issuperset(proof):
                found.append(erratum)
    return found


def write_printed(errata: Iterable[Erratum]) -> str:
    """Write the documents of these errata, each with the ids of its own."""
    by_document: dict[str, list[str]] = {}
    for erratum in errata:
        by_document.setdefault(erratum.document, []).append(erratum.id)
    return ", ".join(f"{document} ({', '.join(ids)})" for document, ids in by_document.items())
