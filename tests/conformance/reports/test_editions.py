"""A report names the editions of the components that it is about, and no other."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.judging.export import export_component
from goldformer.spec import Spec

CASES = "sm-one-row-by-hand,rms-of-two"


def run(*words: str) -> str:
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("cases", "editions"),
    [
        ("sm-one-row-by-hand", ["2017"]),
        ("rms-of-two", ["decoder-only"]),
        (CASES, ["2017", "decoder-only"]),
    ],
)
def test_a_check_names_the_editions_of_what_it_judged(cases: str, editions: list[str], spec: Spec):
    text = run("check", "textbook", "--case", cases)
    assert text.endswith("Spec: " + "; ".join(str(spec.editions[name]) for name in editions))
    report = json.loads(run("check", "textbook", "--case", cases, "--json", "-"))
    assert [edition["edition"] for edition in report["editions"]] == editions
    assert report["editions"][0]["digest"] == spec.editions[editions[0]].digest


def test_each_suite_of_junit_names_the_edition_of_its_component(spec: Spec, tmp_path):
    path = tmp_path / "out.xml"
    run("check", "textbook", "--case", CASES, "--junit", str(path))
    suites = ET.parse(path).getroot()
    named = {suite.get("name"): [p.get("value") for p in suite.iter("property")] for suite in suites}
    assert named == {"softmax": [str(spec.editions["2017"])], "rms_norm": [str(spec.editions["decoder-only"])]}


def test_a_comparison_names_the_editions_of_what_some_implementation_has(spec: Spec, tmp_path):
    saved = {kind: tmp_path / kind for kind in ("json", "markdown", "html")}
    options = [word for kind, path in saved.items() for word in (f"--{kind}", str(path))]
    text = run("compare", "textbook", "--component", "softmax,rms_norm", *options)
    both = "; ".join(map(str, spec.editions.values()))
    assert f" Spec: {both} - wrote " in text
    assert json.loads(saved["json"].read_text(encoding="utf-8"))["environment"]["spec"] == both
    assert f"spec {both}" in saved["markdown"].read_text(encoding="utf-8")
    assert both in saved["html"].read_text(encoding="utf-8")


@pytest.mark.parametrize(("component", "edition"), [("softmax", "2017"), ("rms_norm", "decoder-only")])
def test_an_exported_file_names_the_edition_of_its_component(component: str, edition: str, spec: Spec):
    assert export_component(component, spec)["edition"] == edition
