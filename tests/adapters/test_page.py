"""The two pages on adapters are true: their adapters run and conform, and their tables name what there is."""

from __future__ import annotations

import inspect
import json
import re

import pytest
from click.testing import CliRunner

from goldformer.adapters import layouts, protocol
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main
from goldformer.spec.formulas import parts
from repository import REPOSITORY

PAGE = "".join(
    (REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in ("adapters.md", "adapter-reference.md")
)
FILES = {name: code for code, name in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", PAGE, re.DOTALL)}
#: The end of the reason of require_square_projections; the name of the weight comes before.
ONE_WIDTH = "is not square, and d_model is the width of all projections here"
#: What each implements, the reasons for which it declines, and two dtypes; in the second the last two do not work.
ADAPTERS = {
    "module_adapter.py": (
        {"multi_head_attention"},
        {ONE_WIDTH, "multi_head_attention takes no dropout_rate, and need not"},
        "float32,bfloat16",
    ),
    "encoder_adapter.py": (
        {"encoder_layer", "encoder"},
        {ONE_WIDTH, "encoder_layer takes no dropout_rate, and need not"},
        "float32,bfloat16",
    ),
    "functions_adapter.py": (
        {"softmax", "scaled_dot_product_attention"},
        {"attention without an axis for the heads", "scaled_dot_product_attention takes no dropout_rate, and need not"},
        "float64,float16",
    ),
    "causal_adapter.py": (
        {"fused_multi_head_attention"},
        {
            ONE_WIDTH,
            "CausalAttention always hides later tokens",
            "fused_multi_head_attention takes no dropout_rate, and need not",
        },
        "float32,bfloat16",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that holds the files of the page, and is where commands are run."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # They are imported by bare names, which other pages use too.
    with forget_modules(tmp_path):
        yield tmp_path


def test_every_block_of_code_is_a_file_that_is_used():
    assert len(re.findall("```python", PAGE)) == len(FILES)
    adapters = {"module_adapter.py", "encoder_adapter.py", "functions_adapter.py", "causal_adapter.py"}
    assert FILES.keys() == {"my_model.py", "my_encoder.py"} | adapters


@pytest.mark.parametrize("adapter", ADAPTERS, ids=["module", "encoder", "functions", "causal"])
def test_the_adapters_of_the_page_pass_what_they_implement(adapter, folder):
    components, reasons, dtypes = ADAPTERS[adapter]
    result = CliRunner().invoke(main, ["check", adapter, "--json", "-", "--dtype", dtypes])
    assert result.exit_code == 0, result.output
    verdicts = json.loads(result.stdout)["verdicts"]
    mine = [v for v in verdicts if v["component"] in components]
    assert {v["component"] for v in verdicts if v["status"] == "passed"} == components
    declined = {v["message"] for v in mine if v["reason"] == "not-implemented"}
    # What would need a gradient that is not there is no variant.
    variants = {text for text in declined if "gradient" not in text and "differentiate" not in text}
    assert {text.partition(" ")[2] if ONE_WIDTH in text else text for text in variants} == reasons
    passed = {v["dtype"] for v in mine if v["status"] == "passed"}
    assert len(passed) == (2 if adapter in ("module_adapter.py", "encoder_adapter.py", "causal_adapter.py") else 1)
    for component in components:
        assert sum(v["status"] == "passed" and v["component"] == component for v in mine) > 15


def test_the_gradients_of_the_page_are_judged(folder, spec):
    wanted = {
        "module_adapter.py": "mha-gradient",
        "encoder_adapter.py": "enc-gradient",
    }
    for adapter, start in wanted.items():
        cases = [word for id_ in spec.cases if id_.startswith(start) for word in ("--case", id_)]
        result = CliRunner().invoke(main, ["check", adapter, "--json", "-", "--dtype", "float64", *cases])
        verdicts = json.loads(result.stdout)["verdicts"]
        judged = [v for v in verdicts if v["reason"] not in ("not-implemented", "convention")]
        assert {v["status"] for v in judged} == {"passed"}, adapter


#: The modules whose functions are layouts: `part` is one of the spec's too.
OF_LAYOUTS = (layouts.__name__, parts.__name__)


def rows(heading):
    """The first cells of a table, by what stands in backquotes there."""
    table = PAGE.partition(heading)[2].partition("\n\n")[0]
    return [row for row in table.splitlines() if row.startswith("| ") and not row.startswith("|---")]


def test_every_declaration_has_a_row():
    named = {name for row in rows("| name | meaning |") for name in re.findall(r"`([A-Z]+)`", row.split(" | ")[0])}
    read = set(re.findall(r'getattr\(thing, "([A-Z]+)"', inspect.getsource(protocol)))
    # What ends a process is for those alone that start one.
    assert named == read - {"CLOSE"}
    assert {name for name in LIBRARIES if f'`"{name}"`' in PAGE} == {"torch", "numpy", "jax"}


def test_every_layout_has_a_row_and_every_argument_is_one():
    own = {n: f for n, f in vars(layouts).items() if inspect.isfunction(f) and f.__module__ in OF_LAYOUTS}
    public = {n: f for n, f in own.items() if not n.startswith("_")}
    calls = re.findall(r"`(\w+)\(([^`]*)\)`", "".join(rows("| yours | from ours |")))
    assert {name for name, _ in calls} == public.keys()
    for name, arguments in calls:
        given = [argument.strip() for argument in arguments.split(",")]
        keywords = {argument.partition("=")[0] for argument in given if "=" in argument}
        inspect.signature(public[name]).bind(
            *(argument for argument in given if "=" not in argument), **dict.fromkeys(keywords)
        )


def test_every_clause_about_calls_has_a_row(spec):
    named = re.findall(r"^\| (CALL-\d+) \|", PAGE, re.MULTILINE)
    assert named == [id_ for id_ in spec.clauses if id_.startswith("CALL-")]
