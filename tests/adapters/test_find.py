"""Finding and loading an adapter: every way to name one, and what is said of one that cannot be used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from goldformer.adapters import BUILT_IN, OF_LIBRARIES, Adapter, AdapterError, find_adapter
from goldformer.adapters import find as find_module
from goldformer.extras import install_hint
from goldformer.spec import load_spec
from homework import write_ready

SOFTMAX = """
ARRAYS = "numpy"
NAME = "mine"

def softmax(scores):
    return scores
"""

#: Makes torch impossible to import, as where it is not installed.
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def refused(spec):
    """Return the message of the AdapterError for a name."""

    def message(name):
        with pytest.raises(AdapterError, match=r"\S") as caught:
            find_adapter(name, spec)
        return str(caught.value)

    return message


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """A module `mine_dotted.inner` that can be imported, holding an adapter and an object with one."""
    package = tmp_path / "mine_dotted"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    source = SOFTMAX + "\nclass Holder:\n    ARRAYS = 'numpy'\n    NAME = 'held'\n    softmax = staticmethod(softmax)\n"
    (package / "inner.py").write_text(source + "\nheld = Holder()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "mine_dotted.inner"
    for name in ("mine_dotted", "mine_dotted.inner"):
        sys.modules.pop(name, None)


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


# Ways to name one


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_name_is_found_and_has_components(name, spec):
    adapter = find_adapter(name, spec)
    assert (adapter.name, adapter.origin) == (name, name)
    few = {"scaled_dot_product_attention", "grouped_query_attention", "cached_attention"}
    assert (few if name == "torch-nn-flex" else {"encoder_layer", "encoder"}) <= set(adapter.functions)
    assert not adapter.broken


def test_a_file_is_found_and_called_by_its_path_unless_it_has_a_name(adapter_file, spec):
    named, unnamed = adapter_file(SOFTMAX), adapter_file(SOFTMAX.replace('NAME = "mine"', ""), "other.py")
    assert find_adapter(named, spec).name == "mine"
    assert find_adapter(unnamed, spec).name == unnamed
    assert list(find_adapter(named, spec).functions) == ["softmax"]


def test_a_file_may_import_what_lies_beside_it(adapter_file, tmp_path, spec, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_it.py").write_text("def softmax(scores):\n    return scores\n", encoding="utf-8")
    path = adapter_file('from beside_it import softmax\nARRAYS = "numpy"\n')
    assert find_adapter(path, spec).functions["softmax"].__module__ == "beside_it"


def test_a_file_is_read_anew_even_if_its_size_and_time_are_the_same(adapter_file, spec, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for version in ("1", "2"):
        file = Path(adapter_file(f'ARRAYS = "numpy"\nVERSION = "{version}"\ndef softmax(scores): ...\n'))
        os.utime(file, (1e9, 1e9))
        assert find_adapter(str(file), spec).version == version
    assert not (file.parent / "__pycache__").exists()


def test_a_dotted_module_is_found(importable, spec):
    assert find_adapter(importable, spec).name == "mine"


def test_an_object_of_a_module_is_found(importable, spec):
    adapter = find_adapter(f"{importable}:held", spec)
    assert (adapter.name, adapter.origin) == ("held", f"{importable}:held")


def test_an_entry_point_is_found(importable, spec, monkeypatch):
    entries = [EntryPoint("theirs", f"{importable}:held", find_module.GROUP)]
    monkeypatch.setattr(find_module, "entry_points", lambda group: entries if group == find_module.GROUP else [])
    adapter = find_adapter("theirs", spec)
    assert (adapter.name, adapter.origin) == ("held", "theirs")


def test_an_entry_point_is_suggested_and_listed(refused, monkeypatch):
    entries = [EntryPoint("flashformer", "nowhere", find_module.GROUP)]
    monkeypatch.setattr(find_module, "entry_points", lambda group: entries)
    assert re.search(r"Did you mean flashformer\?.*, flashformer$", refused("flashfromer"))


def test_declarations_are_read(adapter_file, spec):
    path = adapter_file(SOFTMAX + 'VERSION = 3\nDTYPES = "float32"\nDEVICES = ("cpu",)\nCONVENTIONS = {}\n')
    adapter = find_adapter(path, spec)
    assert (adapter.version, adapter.dtypes, adapter.devices) == ("3", ("float32",), ("cpu",))
    assert (adapter.conventions, adapter.hints) == ({}, ())


# Names that mean nothing


def test_a_missing_file_names_the_nearest_one(refused, adapter_file, tmp_path):
    adapter_file(SOFTMAX, "attention.py")
    missing, near = tmp_path / "atention.py", tmp_path / "attention.py"
    assert refused(str(missing)) == (
        f"{missing}: no such file. Did you mean {near}? `goldformer new {missing}` writes one to start from"
    )


def test_a_missing_file_with_no_near_name_says_how_to_get_one(refused, tmp_path):
    missing = tmp_path / "elsewhere" / "mine.py"
    assert refused(str(missing)) == f"{missing}: no such file. `goldformer new {missing}` writes one to start from"


GIVE = 'Give a file (my_adapter.py), a dotted module, a command ("cmd: …"), or one of: '


def test_a_misspelt_built_in_is_guessed(refused):
    assert refused("refrence").startswith(
        f"no adapter 'refrence'. Did you mean reference? {GIVE}"
        "reference, textbook, torch-nn, torch-nn-pre, torch-nn-gelu, torch-nn-math, torch-nn-flash, "
        "torch-nn-fast-path, torch-nn-flex, torch-nn-sequence-first"
    )


@pytest.mark.parametrize("name", ["", ":", "zzz", "two words"])
def test_a_name_like_nothing_lists_what_there_is(name, refused):
    assert refused(name).startswith(f"no adapter {name!r}. {GIVE}")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such.module", "ModuleNotFoundError: No module named 'no_such'"),
        ("mine_dotted.inner:nothing", "AttributeError: module 'mine_dotted.inner' has no attribute 'nothing'"),
        ("mine_dotted.inner:held.nothing", "AttributeError: 'Holder' object has no attribute 'nothing'"),
    ],
)
def test_a_dotted_name_that_leads_nowhere_says_where_it_ends(name, why, importable, refused):
    assert refused(name) == f"{name} could not be imported: {why}"


def test_a_file_that_is_not_python_is_refused(refused, adapter_file):
    path = adapter_file(SOFTMAX, "mine.txt")
    assert refused(path) == f'{path}: not a Python file; give one that ends in .py, or a program as "cmd: {path}"'


def test_a_program_in_this_folder_is_not_taken_for_a_module(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("main.rs", "mine"):
        Path(name).touch()
        assert refused(name).endswith(f'or a program as "cmd: ./{name}"')


def test_a_relative_import_says_what_to_write(refused, adapter_file):
    path = adapter_file('ARRAYS = "numpy"\nfrom .my_model import softmax\n')
    assert f"({path}:2). An adapter imports a file next to it by its plain name: `from my_model" in refused(path)


# Files that cannot be imported


def test_a_syntax_error_gives_its_line_and_text(refused, adapter_file):
    path = adapter_file('ARRAYS = "numpy"\ndef softmax(scores)\n    return scores\n')
    assert refused(path) == f"{path} is not valid Python: expected ':' ({path}:2)\n    def softmax(scores)"


def test_a_syntax_error_that_a_document_prints_names_its_erratum(refused, adapter_file):
    path = adapter_file('ARRAYS = "numpy"\ndef softmax(scores, mask=None):\n    if mask isnotNone:\n        pass\n')
    printed, erratum = refused(path).splitlines()[1:]
    assert printed == "    if mask isnotNone:"
    assert erratum.startswith("As printed in illustrated (illustrated-isnotnone); goldformer explain ")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ('raise ValueError("no weights here")', "ValueError: no weights here"),
        ("import sys; sys.exit('no weights')", "SystemExit: no weights"),
        ("import json; json.loads('{')", "JSONDecodeError: Expecting property name enclosed in double quotes"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
    ],
    ids=["exception", "exit", "deep in a library", "missing library"],
)
def test_whatever_an_import_raises_gives_type_message_and_line_of_the_adapter(statement, says, refused, adapter_file):
    path = adapter_file(f'ARRAYS = "numpy"\n\n{statement}\n')
    message = refused(path)
    assert message.startswith(f"{path} could not be imported: {says}")
    hint = '. It ends when it is imported: put what is a program under `if __name__ == "__main__":`'
    assert message.endswith(f" ({path}:3){hint if 'exit' in statement else ''}")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (r'raise ImportError("a\n::error::b\x1b[2J")', r"could not be imported: ImportError: a ::error::b\x1b[2J ("),
        (r'raise SyntaxError("a\n::error::b", ("f\ng", 1, 1, None))', "is not valid Python: a ::error::b (f g:1)"),
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
            "could not be imported: E: (its message cannot be shown) (",
        ),
    ],
    ids=["lines", "lines of a syntax error", "no message"],
)
def test_whatever_an_import_raises_is_one_line(statement, says, refused, adapter_file):
    """Build servers run commands that stand at the start of a line."""
    path = adapter_file(statement)
    message = refused(path)
    assert message.startswith(f"{path} {says}")
    assert "\n" not in message


def test_a_failed_import_is_tried_anew(refused, adapter_file, spec):
    path = adapter_file("raise ValueError('not yet')")
    assert "not yet" in refused(path)
    assert find_adapter(adapter_file(SOFTMAX), spec).name == "mine"


@pytest.mark.parametrize("name", ["reference", "torch-nn"])
def test_without_torch_a_torch_adapter_says_what_to_install(name, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, BUILT_IN[name].partition(":")[0], raising=False)
    monkeypatch.delitem(sys.modules, "goldformer.reference_impl", raising=False)
    assert refused(name) == f"{name} needs PyTorch, which is not installed: pip install torch"


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_without_its_library_an_adapter_says_what_to_install(name, refused, monkeypatch):
    for package in find_module.NEEDED:
        monkeypatch.setitem(sys.modules, package, None)
    for module in [module for module in sys.modules if module.startswith("goldformer.adapters.libraries")]:
        monkeypatch.delitem(sys.modules, module)
    message = refused(name)
    hints = {
        f"{library}, which is not installed: {install_hint(extra)}" for library, extra in find_module.NEEDED.values()
    }
    assert message.partition(" needs ")[0] == name
    assert message.partition(" needs ")[2] in hints


def test_without_torch_an_adapter_that_imports_it_nowhere_says_the_same(refused, adapter_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    path = adapter_file(SOFTMAX.replace("numpy", "torch"))
    assert refused(path) == f"{path} needs PyTorch, which is not installed: pip install torch"


# Declarations


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", 'ARRAYS is missing: write ARRAYS = "torch" or "numpy" or "jax"'),
        (
            'ARRAY = "numpy"',
            'ARRAYS is missing: write ARRAYS = "torch" or "numpy" or "jax". '
            "ARRAY declares nothing: did you mean ARRAYS?",
        ),
        ('ARRAYS = "tensorflow"', 'ARRAYS is \'tensorflow\': write ARRAYS = "torch" or "numpy" or "jax"'),
    ],
)
def test_arrays_must_be_a_known_library(line, says, refused, adapter_file):
    path = adapter_file(line)
    assert refused(path) == f"{path}: {says}"


CONVENTION_NAMES = ", ".join(load_spec().conventions)


@pytest.mark.parametrize(
    ("conventions", "says"),
    [
        ("'zeros'", 'CONVENTIONS is \'zeros\': write a mapping such as {"empty_row": "zeros"}'),
        ("{'emptyrow': 'zeros'}", f"CONVENTIONS has 'emptyrow'; conventions are {CONVENTION_NAMES}"),
        ("{3: 'zeros'}", f"CONVENTIONS has 3; conventions are {CONVENTION_NAMES}"),
        (
            "{'empty_row': 'zero'}",
            "CONVENTIONS has 'empty_row': 'zero'; its options are uniform, zeros, nan, unspecified",
        ),
        (
            "{'empty_row': ['nan']}",
            "CONVENTIONS has 'empty_row': ['nan']; its options are uniform, zeros, nan, unspecified",
        ),
        (
            "{'softmax.empty_row': 'zeros'}",
            "CONVENTIONS has 'softmax.empty_row', but softmax does not depend on empty_row",
        ),
        (
            "{'multihead_attention.empty_row': 'zeros'}",
            "CONVENTIONS has 'multihead_attention.empty_row', but multihead_attention is no component: "
            "did you mean multi_head_attention?",
        ),
        *(
            (
                f"{{'rms_norm_eps': {written}}}",
                f"CONVENTIONS has 'rms_norm_eps': {written}; its options are 1e-6, 1e-5, float32_eps, or a number of "
                "at least 1.2e-38 and less than 1, such as 1e-8",
            )
            for written in ("0", "-1e-06", "1", "1e-40", "'nan'", "'small'", "True", "None")
        ),
        (
            "{'norm_divisor': 1e-08}",
            "CONVENTIONS has 'norm_divisor': 1e-08; its options are variance_plus_eps, std_plus_eps",
        ),
    ],
)
def test_a_convention_must_be_known_with_its_option_and_component(conventions, says, refused, adapter_file):
    path = adapter_file(f"{SOFTMAX}CONVENTIONS = {conventions}\n")
    assert refused(path) == f"{path}: {says}"


def test_a_family_declares_its_options_and_conventions_change_one(spec, adapter_file, refused):
    path = adapter_file(f"{SOFTMAX}FAMILY = 'llama-3'\nCONVENTIONS = {{'rms_norm_eps': '1e-6'}}\n")
    declared = find_adapter(str(path), spec).conventions
    assert declared == {**spec.families["llama-3"].own, "rms_norm_eps": "1e-6"}
    path = adapter_file(f"{SOFTMAX}FAMILY = ['llama-3']\n")
    assert refused(path) == f"{path}: FAMILY is ['llama-3']; families are {', '.join(spec.families)}"


def test_a_family_that_is_asked_for_keeps_an_option_that_its_usual_code_has(spec, adapter_file):
    declared = "{'rope_pairing': 'half', 'rms_norm.rms_norm_eps': '1e-6', 'empty_row': 'nan'}"
    adapter = find_adapter(str(adapter_file(f"{SOFTMAX}CONVENTIONS = {declared}\n")), spec)
    changed = {**spec.families["llama-3"].own, "rope_pairing": "half", "empty_row": "nan"}
    assert adapter.declare_family("llama-3", spec).conventions == changed


@pytest.mark.parametrize(
    ("written", "option"),
    [
        ("1e-8", "1e-8"), ("'1e-8'", "1e-8"), ("'1.0E-08'", "1e-8"), ("0.00025", "2.5e-4"), ("0.00001", "1e-5"),
        ("1.1920928955078125e-07", "1.1920928955078125e-7"), ("'float32_eps'", "float32_eps"),
    ],
)  # fmt: skip
def test_an_eps_may_be_any_number_in_any_form(written, option, spec, adapter_file):
    path = adapter_file(f"{SOFTMAX}CONVENTIONS = {{'rms_norm_eps': {written}}}\n")
    assert find_adapter(str(path), spec).conventions == {"rms_norm_eps": option}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("DTYPES = ('float32', 'int8')", 'DTYPES has \'int8\'; known are "float64", "float32", "float16"'),
        ("DTYPES = 'bfloat16'", 'DTYPES has \'bfloat16\'; known are "float64", "float32", "float16"'),
        ("DTYPES = ()", 'DTYPES is empty; known are "float64", "float32", "float16"'),
        ("DTYPES = 32", 'DTYPES has 32; known are "float64", "float32", "float16"'),
        ("DEVICES = ['cpu', 'tpu']", 'DEVICES has \'tpu\'; known are "cpu", "cuda", "xpu", "mps"'),
        ("GRADIENTS = 'no'", "GRADIENTS is 'no': write True or False; False if there is no backward pass"),
        ("DEVICES = 'cuda:0'", 'DEVICES has \'cuda:0\'; known are "cpu", "cuda", "xpu", "mps"'),
    ],
)
def test_dtypes_and_devices_must_be_known(line, says, refused, adapter_file):
    path = adapter_file(f"{SOFTMAX}{line}\n")
    assert refused(path) == f"{path}: {says}"


@pytest.mark.parametrize(
    ("name", "component"),
    [("soft_max", "softmax"), ("multihead_attention", "multi_head_attention"), ("casual_mask", "causal_mask")],
)
def test_a_misspelt_component_is_hinted_at(name, component, adapter_file, spec):
    source = SOFTMAX.replace("softmax", name)
    assert find_adapter(adapter_file(source), spec).hints == (f"{name} is no component: did you mean {component}?",)


def test_private_data_and_far_names_are_no_hints(adapter_file, spec):
    source = SOFTMAX + "_causal_mask = causal_masks = padding_maks = 3\ndef attention_helper(): ...\n"
    assert find_adapter(adapter_file(source), spec).hints == ()


@pytest.mark.parametrize(
    ("line", "hints"),
    [
        ("DTYPE = ('float32',)", ("DTYPE declares nothing: did you mean DTYPES?",)),
        ("CONVENTION = {'empty_row': 'nan'}", ("CONVENTION declares nothing: did you mean CONVENTIONS?",)),
        ("FAMLY = 'llama-3'", ("FAMLY declares nothing: did you mean FAMILY?",)),
        ("DYTPES = ['float32']", ("DYTPES declares nothing: did you mean DTYPES?",)),
        ("CONVENTONS = {'empty_row': 'nan'}", ("CONVENTONS declares nothing: did you mean CONVENTIONS?",)),
        ("DTYPE = float", ()),
        # Constants of an implementation.
        ("DTYPE = DEVICE = 'cpu'", ()),
        ("DTYPE = TYPES = ('source', 'target')", ()),
        ("TYPES = CONVERSIONS = CONVENTION_NAMES = {'w_q': 'query'}", ()),
        ("CONVENTION = {'w_q': 3}", ()),
        ("LAYER = ENCODER = ARRAY = {'w_q': 'query.weight'}", ()),
        ("DTYPES = DTYPE = ('float32',)", ()),
    ],
)
def test_a_declaration_of_nearly_the_right_name_is_hinted_at(line, hints, adapter_file, spec):
    assert find_adapter(adapter_file(f"{SOFTMAX}{line}\n"), spec).hints == hints


def test_a_file_without_any_component_is_hinted_at(adapter_file, spec):
    source = SOFTMAX.replace("\ndef softmax(scores):", "\nclass Model:\n  def softmax(self, scores):")
    assert find_adapter(adapter_file(source), spec).hints == ("nothing in it is named as a component, such as softmax",)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from torch import softmax", {"softmax": "torch"}),
        ("from torch.nn.functional import cross_entropy, layer_norm, relu",
         {"layer_norm": "torch.nn.functional", "cross_entropy": "torch.nn.functional"}),
        ("from torch.nn.functional import one_hot", {"one_hot": "torch._C._nn"}),
    ],
    ids=["a builtin", "two of them", "of an inner module"],
)  # fmt: skip
def test_a_component_that_a_library_defines_is_hinted_at(line, found, adapter_file, spec):
    adapter = find_adapter(adapter_file(f'{line}\nARRAYS = "torch"\n'), spec)
    assert list(adapter.functions) == list(found)
    assert adapter.hints == tuple(
        f"{name} comes from {module} and is judged as yours: if that is not meant, import the module and not the name"
        for name, module in found.items()
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_what_the_author_wrote_is_no_import_however_it_is_wrapped(adapter_file, spec, tmp_path):
    (tmp_path / "my_package_beside.py").write_text("def one_hot(ids, *, vocab): ...\n", encoding="utf-8")
    source = """
import functools
import torch
from torch import nn
from torch.nn import functional
from my_package_beside import one_hot
ARRAYS = "torch"

@torch.no_grad()
def softmax(scores): ...
@torch.jit.script
def shift_right(ids: torch.Tensor, bos_id: int) -> torch.Tensor:
    return ids
class Norm(nn.Module):
    def forward(self, x, params): ...
layer_norm = Norm()
cross_entropy = functools.partial(functional.cross_entropy)
def dropout(x, *, rate, training, seed):
    return functional.dropout(x, rate, training)
"""
    adapter = find_adapter(adapter_file(source), spec)
    assert adapter.functions.keys() >= {"softmax", "one_hot", "shift_right", "layer_norm", "cross_entropy", "dropout"}
    assert adapter.hints == ()


def test_what_an_object_computes_on_access_is_left_alone(spec):
    class Lazy:
        ARRAYS = "numpy"

        @property
        def weights(self):
            raise RuntimeError("not loaded yet")

        def softmax(self, scores):
            return scores

    assert list(Adapter.from_object(Lazy(), "lazy", spec).functions) == ["softmax"]


# What is imported


def test_the_plugin_and_the_adapters_import_neither_torch_nor_hypothesis():
    code = (
        "import sys, goldformer.adapters, goldformer.conformance.plugin, goldformer.conformance.judging.cases;"
        "print([m for m in ('torch', 'hypothesis', 'jax') if m in sys.modules])"
    )
    assert run_python(code).stdout == "[]\n"


def test_a_numpy_adapter_is_checked_where_torch_is_not_installed(adapter_file):
    source = SOFTMAX.replace(
        "return scores", "e = np.exp(scores - scores.max(-1, keepdims=True)); return e / e.sum(-1, keepdims=True)"
    )
    arguments = ["check", adapter_file("import numpy as np\n" + source), "--component", "softmax", "--quiet"]
    code = f"from goldformer.conformance.cli import main; main({arguments})"
    done = run_python(BLOCK + code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "conforms" in done.stdout


def test_a_torch_adapter_is_refused_in_one_line_where_torch_is_not_installed(adapter_file):
    path = adapter_file(SOFTMAX.replace("numpy", "torch"))
    done = run_python(f"{BLOCK}from goldformer.conformance.cli import main; main(['check', {path!r}])")
    assert done.returncode == 2
    assert done.stderr == f"goldformer: {path} needs PyTorch, which is not installed: pip install torch\n"


def test_a_class_is_not_graded_where_what_its_adapter_asks_for_is_not_installed(tmp_path):
    # Once it was told by the process that submissions are forked from, which had ended.
    (tmp_path / "submission.py").write_text("", encoding="utf-8")
    write_ready("attention", tmp_path)
    words = [
        "grade",
        str(tmp_path / "submission.py"),
        "--assignment",
        str(tmp_path / "assignment.yaml"),
        "--out",
        str(tmp_path / "out"),
    ]
    done = run_python(f"{BLOCK}from goldformer.conformance.cli import main; main({words!r})")
    needs = f"{tmp_path / 'adapter.py'} needs PyTorch, which is not installed: pip install torch"
    assert (done.returncode, done.stderr) == (2, f"goldformer: {needs}\n")
    assert not (tmp_path / "out").exists()


def test_an_adapter_whose_getattr_raises_anything_is_refused(adapter_file, spec):
    source = 'ARRAYS = "numpy"\ndef softmax(scores): ...\ndef __getattr__(name):\n    raise RuntimeError("no")\n'
    with pytest.raises(AdapterError, match="its __getattr__ raises RuntimeError for a name that it does not have: "):
        find_adapter(adapter_file(source), spec)
