"""goldformer coverage: a page that cannot be written stays, and nothing heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from goldformer.conformance.cli import main


def cover(root, *options):
    return CliRunner().invoke(main, ["coverage", "--spec", str(root), *options])


def test_line_breaks_of_a_checkout_do_not_matter(small_spec):
    cover(small_spec, "--write")
    page = small_spec / "README.md"
    page.write_bytes(page.read_bytes().replace(b"\n", b"\r\n"))
    assert cover(small_spec, "--check").exit_code == 0


def test_a_page_that_cannot_be_written_is_2_and_stays(small_spec, monkeypatch):
    page = small_spec.resolve() / "README.md"
    page.write_text("old\n", encoding="utf-8")
    before = sorted(small_spec.rglob("*"))

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    result = cover(small_spec, "--write")
    assert (result.exit_code, result.stderr) == (
        2, f"goldformer: {page} cannot be written: No space left on device\n",
    )  # fmt: skip
    assert sorted(small_spec.rglob("*")) == before
    assert page.read_text(encoding="utf-8") == "old\n"


def test_neither_torch_nor_the_oracle_is_imported(small_spec):
    code = (
        "import sys; from goldformer.conformance.cli import main;"
        f"sys.argv = ['goldformer', 'coverage', '--write', '--spec', {str(small_spec)!r}];\n"
        "try: main()\n"
        "except SystemExit as done: print('imported', done.code,"
        "[n for n in ('torch', 'flint', 'pytest', 'hypothesis', 'goldformer.spec.oracle') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "imported 0 []"
