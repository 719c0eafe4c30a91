"""The files of the project that its hosts read: workflows, changelog, citation, hooks."""

from __future__ import annotations

import re
import tomllib

import yaml

from repository import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def read(name):
    return yaml.safe_load((REPOSITORY / name).read_text(encoding="utf-8"))


ALL, CI, RELEASE = (read(f".github/workflows/{name}.yml") for name in ("all", "ci", "release"))
MATRIX = CI["jobs"]["check"]["strategy"]["matrix"]


def test_every_supported_python_is_checked_on_both_systems():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert MATRIX["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert MATRIX["os"] == ["ubuntu-latest", "macos-latest"]


def test_the_oldest_and_the_newest_torch_are_checked():
    (oldest,) = re.findall(r"torch>=([\d.]+)", " ".join(PROJECT["optional-dependencies"]["torch"]))
    assert {job["torch"] for job in MATRIX["include"]} == {f"{oldest}.*", "newest"}
    assert {job["python"] for job in MATRIX["include"]} <= set(MATRIX["python"])


def test_what_the_workflows_make_exists():
    steps, weekly = (
        [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
        for workflow in (CI, ALL)
    )
    assert (steps[-1], weekly) == ("make check", ["make test-all"])
    for target in re.findall(r"^make (\S+)", "\n".join(steps + weekly), re.MULTILINE):
        assert re.search(rf"^({re.escape(target)}|\$\(STAMP\)):", MAKEFILE, re.MULTILINE), target


def test_a_release_needs_every_check():
    jobs = RELEASE["jobs"]
    assert jobs["ci"] == {"uses": "./.github/workflows/ci.yml"}
    assert (jobs["build"]["needs"], jobs["publish"]["needs"], jobs["assets"]["needs"]) == ("ci", "build", "publish")
    # The key `on` is the boolean true to YAML 1.1.
    assert "workflow_call" in CI[True]


def test_the_tag_of_a_version_is_a_release_and_workflows_use_a_commit():
    (pattern,) = RELEASE[True]["push"]["tags"]
    # In such a pattern * stands for anything but a slash, and + is that of a regular expression.
    is_release = re.compile(pattern.replace(".", r"\.").replace("*", "[^/]*")).fullmatch
    assert is_release(f"v{PROJECT['version']}")
    pages = [*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "examples/ci/github-actions.yml"]
    used = {name for page in pages for name in re.findall(r"OWNER/goldformer@(\S+)", page.read_text("utf-8"))}
    assert used == {"FILL-IN-THE-COMMIT"}


def test_the_changelog_has_a_place_for_changes_and_the_version():
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, *versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert unreleased == "Unreleased"
    assert PROJECT["version"] in versions
    assert all(len(section.splitlines()) <= 60 for section in text.split("\n## ")[1:])


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_hooks_run_what_make_check_runs():
    (local,) = read(".pre-commit-config.yaml")["repos"]
    for hook in local["hooks"]:
        program = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f"$(BIN)/{program} " in MAKEFILE


def test_contributing_and_security_link_to_what_exists():
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#:]+)\)", text)
        assert links
        assert all((REPOSITORY / link).exists() for link in links)
        for target in re.findall(r"^\$ make (\w+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
