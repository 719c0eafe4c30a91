"""The examples for build servers: they are YAML, and what they use and call exists."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from click.testing import CliRunner

from goldformer.conformance.cli import main
from repository import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "ci"
ACTION = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text("utf-8"))}
WORKFLOW = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
PAGE = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")


def used(job):
    """The inputs that a job hands to the action."""
    (step,) = [step for step in job["steps"] if "/goldformer@" in step["uses"]]
    return step


def test_it_runs_on_every_push_and_each_week():
    # The key `on` is the boolean true to YAML 1.1.
    assert WORKFLOW[True].keys() == {"push", "pull_request", "schedule"}
    assert WORKFLOW["concurrency"]["cancel-in-progress"] is True
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_one_job_checks_once_and_the_other_compares_two_versions_of_torch():
    assert JOBS.keys() == {"conformance", "baseline"}
    assert used(JOBS["conformance"])["with"] == {"adapter": "my_adapter.py"}
    given = used(JOBS["baseline"])["with"]
    assert (given["check"], given["baseline"]) == ("false", "baselines/cpu")
    assert given["packages"] == "torch==${{ matrix.torch }}"
    pinned, newest = JOBS["baseline"]["strategy"]["matrix"]["torch"]
    assert re.fullmatch(r"2\.\d+\.\*", pinned)
    assert newest == "2.*"
    # The jobs of a matrix would overwrite one another's artifact.
    assert "${{ strategy.job-index }}" in given["artifact"]


@pytest.mark.parametrize("job", JOBS)
def test_the_action_takes_what_it_is_given_and_its_owner_is_filled_in(job):
    step = used(JOBS[job])
    assert step["uses"] == "FILL-IN-THE-OWNER/goldformer@FILL-IN-THE-COMMIT"
    required = {name for name, about in ACTION["inputs"].items() if about.get("required")}
    assert required <= step["with"].keys() <= ACTION["inputs"].keys()


def test_the_page_lists_every_input_of_the_action():
    rows = re.findall(r"^\| (`.*?`) \| (?!what)", PAGE, re.MULTILINE)
    assert [name.strip("`") for row in rows for name in row.split(", ")] == [
        "adapter", "check", "options", "baseline", "baseline-options", "extras", "packages", "extra-index-url",
        "python-version", "reports", "artifact",
    ]  # fmt: skip
    assert {name.strip("`") for row in rows for name in row.split(", ")} == ACTION["inputs"].keys()


# ── pre-commit ──

CONFIGURED = yaml.safe_load((EXAMPLES / "pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]


def commands():
    """The lines that pre-commit would run for the hooks of the example and of the page."""
    for hook in CONFIGURED[0]["hooks"]:
        yield [*shlex.split(HOOKS[hook["id"]]["entry"]), *hook["args"]]
    (local,) = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "repo: local" in block]
    yield from (shlex.split(hook["entry"]) for hook in yaml.safe_load(local)["repos"][0]["hooks"])


def test_the_example_has_every_hook_and_the_address_to_be_filled_in():
    assert [hook["id"] for hook in CONFIGURED[0]["hooks"]] == list(HOOKS)
    assert all(CONFIGURED[0][name].startswith("FILL IN ") for name in ("repo", "rev"))


@pytest.mark.parametrize("hook", HOOKS.values(), ids=list(HOOKS))
def test_a_hook_is_one_and_runs_once_without_names_of_files(hook):
    assert hook.keys() >= {"id", "name", "entry", "language"}
    assert (hook["language"], hook["pass_filenames"], hook["require_serial"]) == ("python", False, True)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_a_hook_calls_a_command_that_exists(words, tmp_path, monkeypatch):
    """A right adapter passes it, and one that has changed does not."""
    assert words[0] == "goldformer"
    monkeypatch.chdir(tmp_path)
    adapter = tmp_path / "my_adapter.py"
    source = "from goldformer.adapters.builtin.textbook import softmax\nARRAYS = 'numpy'\n"
    adapter.write_text(source, encoding="utf-8")
    if "baseline" in words:
        record = ["baseline", "record", "my_adapter.py", "--out", "baselines/cpu", "--dtype", "float32"]
        assert CliRunner().invoke(main, record).exit_code == 0
    assert CliRunner().invoke(main, words[1:]).exit_code == 0
    adapter.write_text(source + "right = softmax\ndef softmax(scores): return 2 * right(scores)\n", encoding="utf-8")
    assert CliRunner().invoke(main, words[1:]).exit_code == 1
