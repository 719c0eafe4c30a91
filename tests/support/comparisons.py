"""Comparisons made up of verdicts, so that what is told of them can be checked without running anything."""

from tests.support.runs import change, make_run

from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.judging.verdict import Difference, Element, Status, Verdict
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.reports.record import RunRecord, complete_record
from goldformer.conformance.reports.remarks import make_remarks
from goldformer.conformance.reports.results import summarize
from goldformer.conformance.reports.text import format_remarks
from goldformer.spec import load_spec

WRONG = Difference(
    "output", 3, 9, 1e-7, 2.5e5, Element((0, 0), 0.397954285, 0.425934076), Element((2, 0), 0.13547101, 0.0883140191)
)


def verdict(check, component, status="passed", reason="", dtype="float32", **more):
    """The verdict of a case, with a clause and a command, unless told otherwise."""
    given = {
        "check": check, "kind": "case", "component": component, "title": f"the title of {check}",
        "status": Status(status), "reason": reason, "message": "", "dtype": dtype, "device": "cpu",
        "clauses": ("SM-1",), "source": "java J1", "reproduce": f"goldformer check mine.py --case {check}",
    }  # fmt: skip
    return Verdict(**{**given, **more})


def wrong(check, component, dtype="float32", **more):
    """A wrong value, 250 000 tolerances away."""
    said = f"output: 3 of 9 values are wrong ({check})"
    given = {"message": said, "ratio": 2.5e5, "differences": (WRONG,)}
    return change(verdict(check, component, "failed", "wrong-value", dtype), **{**given, "matches": (), **more})


def made(name, *verdicts, problem="", implemented=frozenset(), absent=(), chosen=False, **more):
    facts = RunRecord(f"{name}.py", name, "7", {"numpy": "2.0"}, run=make_run(verdicts), problem=problem, **more)
    return complete_record(facts, load_spec(), implemented, absent, chosen=chosen)


def of(*records, dtypes=("float64", "float32")):
    return Comparison(ComparisonRequest(dtypes), records)


RIGHT = made(
    "right",
    verdict("sm-one", "softmax", ratio=0.125),
    verdict("sm-one", "softmax", dtype="float64", ratio=0.25),
    verdict("sm-other", "softmax", "skipped", "convention"),
    verdict("ln-one", "layer_norm", "skipped", "not-implemented"),
    conventions={"empty_row": "nan"},
    hints=("sotfmax is no component: did you mean softmax?",),
    seconds=1.25,
)
#: Its softmax is wrong, and its attention along with it; its name is markup where it is not escaped.
FAILING = made(
    "a | <b>*bad*</b>",
    wrong("sm-one", "softmax"),
    verdict("sm-one", "softmax", dtype="float64", ratio=0.5),
    verdict("sdpa-one", "scaled_dot_product_attention", "errored", "raised", message="raised <X> & \"y\"",
            clauses=("SDPA-2",)),
)  # fmt: skip
MISSING = RunRecord("missing.py", "missing.py", problem="no such file. `goldformer new missing.py` writes one")
ALL = of(RIGHT, FAILING, MISSING)


def remark_lines(verdicts, spec, results=None):
    """The remarks below the table of a run, in lines."""
    run = verdicts if isinstance(verdicts, DiagnosedRun) else make_run(verdicts)
    found = summarize(run, spec, spec.components) if results is None else results
    return format_remarks(make_remarks(run, found, spec))
