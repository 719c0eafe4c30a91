"""Files that a user names: links stay, and pipes and devices are written into."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.spec.files import write_named_file

CHECK = ("check", "textbook", "--case", "sm-one-row-by-hand", "-q")


def test_a_pipe_is_written_into_and_stays(tmp_path: Path) -> None:
    """Replacing it would take /dev/null away from every program, if root names that."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_named_file(pipe, "text")
    assert (os.read(reader, 100), stat.S_ISFIFO(pipe.stat().st_mode)) == (b"text", True)
    os.close(reader)
    with pytest.raises(OSError, match="is a pipe or a socket that nothing reads") as raised:
        write_named_file(pipe, "text")
    assert raised.value.filename == str(pipe)


@pytest.mark.parametrize("there", [True, False], ids=["file", "nothing yet"])
def test_a_link_stays_and_its_file_is_written(there: bool, tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    page, link = tmp_path / "www" / "page.html", tmp_path / "page.html"
    link.symlink_to(Path("www", "page.html"))
    if there:
        page.write_text("old")
    write_named_file(link, "new")
    assert (page.read_text(), link.is_symlink(), len(list(tmp_path.rglob("*")))) == ("new", True, 3)


def test_a_report_goes_to_the_pipe_that_an_option_names(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    done = CliRunner().invoke(main, [*CHECK, "--junit", str(pipe)])
    assert (done.exit_code, os.read(reader, 5)) == (0, b"<?xml")
    os.close(reader)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into every folder")
def test_what_is_no_file_may_be_named_in_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [*CHECK, "--junit", "/dev/null"])
    assert (done.exit_code, done.stderr) == (0, "")
