"""The adapters of libraries: all golden cases hold but those that are recorded, where the library is installed.

`make libraries` installs the versions that were tested and runs this file; elsewhere what is missing is skipped.
"""

from __future__ import annotations

import re

import pytest

from goldformer.adapters import OF_LIBRARIES, AdapterError, find_adapter
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.decision import Policy
from library_deviations import DEVIATIONS, FLOAT32_INSIDE, IN_DTYPE
from repository import REPOSITORY

# Libraries warn of what is none of our affair, and tinygrad runs on the device that DEV names.
pytestmark = pytest.mark.filterwarnings("default")

FINDINGS = (REPOSITORY / "docs" / "findings.md").read_text(encoding="utf-8")

#: What takes minutes on tinygrad's device for machines without a compiler: thousands of elements, in plain Python.
SLOW = {"tinygrad": {"dropout", "xavier_uniform", "scaled_dot_product_attention"}}


@pytest.fixture
def library(spec):
    """The adapter of a library, or a skip that says what is missing."""

    def load(name):
        try:
            return find_adapter(name, spec)
        except AdapterError as missing:
            if "which is not installed" not in str(missing):
                raise
            pytest.skip(str(missing))

    return load


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_all_cases_hold_but_those_recorded(name, dtype, spec, library, verdicts_of):
    adapter = library(name)
    if dtype not in adapter.dtypes:
        pytest.skip(f"{name} does not work in {dtype}")
    components = set(adapter.functions) - SLOW.get(name, set())
    bench = Bench(spec, adapter, dtype, "cpu", Policy(require_refusals=True, require_precision=True))
    verdicts = verdicts_of(bench, *components)
    rough = FLOAT32_INSIDE.get(name, set()) if dtype == "float64" else set()
    failed = {verdict.check for verdict in verdicts if verdict.bad and verdict.component not in rough}
    known = DEVIATIONS.get(name, set()) | IN_DTYPE.get((name, dtype), set())
    assert failed == {case for case in known if spec.cases[case].component not in rough}
    # A component that no longer rounds to float32 leaves the table.
    assert {verdict.component for verdict in verdicts if verdict.bad} >= rough
    assert len([verdict for verdict in verdicts if verdict.ratio is not None and not verdict.bad]) > 20


def test_every_adapter_of_a_library_has_components(spec, library):
    for name in OF_LIBRARIES:
        try:
            adapter = find_adapter(name, spec)
        except AdapterError as missing:
            assert re.fullmatch(  # noqa: PT017 - either is right, and which depends on what is installed
                rf"{name} needs .*, which is not installed: pip install [a-z -]+", str(missing)
            )
            continue
        assert (adapter.name, adapter.origin) == (name, name)
        assert adapter.functions
        assert not adapter.broken
        assert not adapter.hints


def test_every_recorded_deviation_is_a_case_and_is_explained(spec):
    recorded = set().union(*DEVIATIONS.values(), *IN_DTYPE.values())
    assert recorded <= set(spec.cases)
    assert set(DEVIATIONS) | set(FLOAT32_INSIDE) <= set(OF_LIBRARIES)
    missing = {case for case in recorded if f"`{case}`" not in FINDINGS}
    assert not missing


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_every_library_has_a_section_of_findings(name):
    assert f"\n## {name}\n" in FINDINGS
