"""The package holds what the checkout holds, and the import rules are those of the house."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import requires

import pytest

from repository import REPOSITORY

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("spec", "reference_impl", "adapters", "conformance")


def test_every_folder_with_an_init_is_listed():
    found = {"goldformer"}
    for folder in FOLDERS:
        for init in (REPOSITORY / folder).rglob("__init__.py"):
            found.add(".".join(("goldformer", *init.parent.relative_to(REPOSITORY).parts)))
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_listed_package_maps_to_its_folder():
    mapping = PYPROJECT["tool"]["setuptools"]["package-dir"]
    assert set(mapping) == set(PYPROJECT["tool"]["setuptools"]["packages"])
    for package, folder in mapping.items():
        assert (REPOSITORY / folder / "__init__.py").exists()
        assert package == "goldformer" or folder == "/".join(package.split(".")[1:])


def test_the_name_plate_links_to_the_four_folders():
    for folder in FOLDERS:
        link = REPOSITORY / "src" / "goldformer" / folder
        assert link.is_symlink()
        assert link.resolve() == REPOSITORY / folder


def test_all_data_of_the_spec_is_package_data():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["goldformer.spec"]
    shipped = {path for pattern in patterns for path in (REPOSITORY / "spec").glob(pattern)}
    data = {p for p in (REPOSITORY / "spec").rglob("*") if p.is_file() and p.suffix in (".yaml", ".json", ".md")}
    assert data
    assert shipped == data


def test_all_ready_assignments_are_package_data():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["goldformer.conformance.grading"]
    grading = REPOSITORY / "conformance" / "grading"
    shipped = {path for pattern in patterns for path in grading.glob(pattern)}
    files = {p for p in (grading / "assignments").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert files
    assert shipped == files


def test_all_templates_are_package_data():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["goldformer.conformance.reports"]
    shipped = {path for pattern in patterns for path in (REPOSITORY / "conformance" / "reports").glob(pattern)}
    templates = {p for p in (REPOSITORY / "conformance" / "reports" / "templates").rglob("*") if p.is_file()}
    assert templates
    assert shipped == templates


def test_the_examples_are_in_the_source_distribution_alone():
    assert list((REPOSITORY / "examples").glob("*.py"))
    assert "graft examples" in (REPOSITORY / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    assert not [folder for folder in PYPROJECT["tool"]["setuptools"]["package-dir"].values() if "examples" in folder]


def test_the_examples_in_other_languages_are_in_the_source_distribution_alone():
    files = [path for path in (REPOSITORY / "adapters" / "examples").rglob("*") if path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]
    assert {path.suffix for path in files} == {".java", ".mjs", ".c", ".h", ".md", ".py"}
    assert "graft adapters/examples" in (REPOSITORY / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    packages = PYPROJECT["tool"]["setuptools"]["package-dir"].values()
    assert not [folder for folder in packages if folder.startswith("adapters/examples")]


def test_torch_and_matplotlib_are_extras():
    plain = [r for r in requires("goldformer") or [] if "extra ==" not in r]
    assert plain
    assert not [r for r in plain if re.match(r"(torch|matplotlib)\b", r)]


@pytest.mark.parametrize(
    "suffix", [".py", ".md", ".yaml", ".json", ".toml", ".txt", ".html", ".java", ".mjs", ".c", ".h"]
)
def test_no_file_names_a_machine(suffix):
    tracked = [
        p for folder in (*FOLDERS, "tests", "benchmarks", "examples") for p in (REPOSITORY / folder).rglob(f"*{suffix}")
    ]
    tracked += list(REPOSITORY.glob(f"*{suffix}"))
    assert tracked or suffix == ".txt"
    for path in tracked:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:work|home|root|opt)/\w", text), path


@pytest.mark.parametrize("folder", [*FOLDERS, "tests", "benchmarks"])
def test_a_docstring_begins_with_what_a_thing_does_or_is(folder):
    asking = [
        f"{path.relative_to(REPOSITORY)}: {text.splitlines()[0]}"
        for path in (REPOSITORY / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if re.match(r"(What|Whether|How)\b", text := ast.get_docstring(node) or "")
    ]
    assert not asking, "begin with an imperative or a noun"
