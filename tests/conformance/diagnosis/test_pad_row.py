"""Tables with a fixed row of the padding: right where that is declared, named where it is not."""

from __future__ import annotations

import pytest

from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import judge_case

#: Tables whose padding has a constant id.
MODULE = """
import torch
from torch import nn
from torch.func import functional_call

ARRAYS = "torch"

def token_embedding(ids, *, params):
    table = params["table"]
    module = nn.Embedding(*table.shape, padding_idx={row}).to(table)
    return functional_call(module, {{"weight": table}}, ids, strict=True)
"""
NUMPY = """
import numpy as np

ARRAYS = "numpy"

def token_embedding(ids, *, params):
    return np.take(params["table"], ids, axis=0)

def token_embedding_gradient(ids, cotangent, *, params):
    words = np.eye(len(params["table"]), dtype=cotangent.dtype)[ids]
    words[..., {row}] = 0
    return {{"table": np.einsum("btv,btd->vd", words, cotangent)}}
"""
#: The same with the padding that the call names.
WITH_ID = """
import torch
from torch.nn import functional as F

ARRAYS = "torch"
CONVENTIONS = {"pad_row": "fixed"}

def token_embedding(ids, *, params, pad_id=None):
    return F.embedding(ids, params["table"], padding_idx=pad_id)
"""
DECLARED = '\nCONVENTIONS = {"pad_row": "fixed"}\n'

styles = pytest.mark.parametrize("source", [MODULE, NUMPY], ids=["module", "numpy"])


def judge(bench, spec):
    cases = (case for case in spec.cases_of("token_embedding") if case.error is None)
    return Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases)


@styles
@pytest.mark.parametrize("row", [0, 2])
def test_a_declared_row_is_right_whichever_it_is(source, row, bench, adapter_file, spec):
    verdicts = judge(bench(adapter_file(source.format(row=row) + DECLARED)), spec)
    assert not [v.check for v in verdicts if v.bad]


def test_the_row_of_the_pad_id_is_judged_where_the_call_names_it(bench, adapter_file, spec):
    verdicts = {v.check: v for v in judge(bench(adapter_file(WITH_ID)), spec)}
    assert not [v.check for v in verdicts.values() if v.bad]
    assert all(v.is_judged for name, v in verdicts.items() if name.startswith("emb-fixed-pad-row"))


@styles
@pytest.mark.parametrize("row", [0, 1])
def test_an_undeclared_row_is_told_with_its_declaration(source, row, bench, adapter_file, spec):
    findings = diagnose(judge(bench(adapter_file(source.format(row=row))), spec), spec)
    (found,) = [finding for finding in findings if finding.mistakes]
    assert (found.label, found.mistakes) == (MISTAKE_FOUND, (f"token_embedding.backward.row-{row}-fixed",))
    assert 'CONVENTIONS = {"pad_row": "fixed"}' in found.text
