"""goldformer components: what is judged."""

from __future__ import annotations

from collections import Counter

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import OK, plain_table, print_table
from goldformer.spec import load_spec


@click.command(epilog=options.list_statuses())
def components() -> int:
    """List what is judged.

    A component has a contract and golden cases; `goldformer explain softmax` shows one in full.
    """
    spec = load_spec()
    cases = Counter(case.component for case in spec.cases.values())
    table = plain_table("component", "cases", "title", right=("cases",))
    for name, contract in spec.contracts.items():
        table.add_row(name, str(cases[name]), contract.title)
    print_table(table)
    return OK
