"""The report of one verdict, and what fits a narrow terminal."""

from __future__ import annotations

from tests.support.runs import change

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.reports.results import ComponentResult, Counts
from goldformer.conformance.reports.text import fold_command, format_table, list_facts


def test_a_cause_is_not_told_again_with_an_option_that_makes_no_difference(spec):
    bench = Bench(spec, Adapter.from_object(build_textbook(), "textbook", spec), "float32", "cpu")
    verdict = check_case(spec.cases["sdpa-causal"], bench)
    alone, beside = Match(("scale-missing",), 0.1), Match(("empty_row: nan", "scale-missing"), 0.1)
    equals = [text for label, text in list_facts(change(verdict, matches=(beside, alone)), spec) if label == "Equals"]
    assert equals == ["the scores are not divided by √d_k (scale-missing), within 0.1 of the tolerance"]


def test_on_a_narrow_terminal_a_row_is_two_lines_that_fit(monkeypatch):
    rows = [
        ComponentResult("scaled_dot_product_attention", "fails first", Counts(passed=55, failed=54, worst_ratio=2e5))
    ]
    assert len(format_table(rows)) == 2
    monkeypatch.setenv("COLUMNS", "80")
    heading, row = format_table(rows)
    assert max(map(len, (heading, *row.splitlines()))) <= 80
    assert row.endswith("\n  fails first")


def test_on_a_narrow_terminal_a_command_is_folded_as_a_shell_reads_it(monkeypatch):
    command = "goldformer check a_long_name_of_a_file.py:MultiHeadAttention --case mha-distinct-sizes --dtype float32"
    assert fold_command("Repeat: ", command) == f"Repeat: {command}"
    monkeypatch.setenv("COLUMNS", "80")
    folded = fold_command("Repeat: ", command)
    assert max(map(len, folded.splitlines())) <= 80
    # A shell takes a backslash out with the end of its line.
    assert folded.removeprefix("Repeat: ").replace("\\\n", "").split() == command.split()
    quoted = "goldformer check 'cmd: program --with an option' --case mha-distinct-sizes-causal --dtype float32"
    assert fold_command("Repeat: ", quoted) == f"Repeat: {quoted}"
