"""Submissions of a class are found wherever they lie, read within limits, and never believed."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from goldformer.conformance.grading.model import Submission, SubmissionLimits
from goldformer.conformance.grading.submissions import ClassList, NoSubmissions, find_submissions

CODE = b"def softmax(scores):\n    return scores\n"
SMALL = SubmissionLimits(size=1, files=5)


def zipped(path: Path, files: dict[str, bytes], **links: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        for name, target in links.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
    return path


def only(path: Path, limits: SubmissionLimits = SMALL) -> Submission:
    found = find_submissions(path)
    assert len(found) == 1
    return found.handed[0].read(limits)


def ids(found: ClassList) -> list[str]:
    return [handed.id for handed in found.handed]


def test_a_class_is_files_folders_and_zips(tmp_path: Path) -> None:
    (tmp_path / "alice.py").write_bytes(CODE)
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob" / "submission.py").write_bytes(CODE)
    (tmp_path / "bob" / "helper.py").write_bytes(b"x = 1\n")
    zipped(tmp_path / "carol.zip", {"homework/att.py": CODE, "homework/notes.txt": b"hi", "__MACOSX/homework/x": b""})
    (tmp_path / ".hidden.py").write_bytes(CODE)
    found = find_submissions(tmp_path)
    assert ids(found) == ["alice", "bob", "carol"]
    alice, bob, carol = (handed.read(SMALL) for handed in found.handed)
    assert alice.files == {"submission.py": CODE}
    assert bob.files == {"submission.py": CODE, "helper.py": b"x = 1\n"}
    assert carol.files == {"submission.py": CODE, "notes.txt": b"hi"}
    assert not alice.problem + bob.problem + carol.problem
    assert alice.digest != bob.digest != carol.digest


@pytest.mark.parametrize("kind", ["file", "folder", "zip"])
def test_a_single_submission_is_found_in_each_form(kind: str, tmp_path: Path) -> None:
    match kind:
        case "file":
            path = tmp_path / "dora.py"
            path.write_bytes(CODE)
        case "folder":
            path = tmp_path / "dora"
            path.mkdir()
            (path / "submission.py").write_bytes(CODE)
        case _:
            path = zipped(tmp_path / "dora.zip", {"submission.py": CODE})
    assert ids(find_submissions(path)) == ["dora"]
    assert only(path).files == {"submission.py": CODE}


def write(folder: Path, *names: str, **sources: str) -> Path:
    """A folder of files with code, or with these sources by their module."""
    for name, code in {**dict.fromkeys(names, CODE), **{f"{m}.py": s.encode() for m, s in sources.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(code)
    return folder


@pytest.mark.parametrize(
    ("source", "others"),
    [
        ("import helper", ["helper.py"]),
        ("def softmax(s):\n    from helper import exp\n", ["helper.py", "notes.txt", "README.md", "data/weights.npz"]),
        ("from parts.attention import attend", ["parts/__init__.py", "parts/attention.py"]),
        ("import parts.attention", ["parts/attention.py"]),
        ("from . import helper", ["helper.py"]),
        ("x = 1", ["report.pdf", "__init__.py"]),
    ],
)
def test_a_folder_whose_modules_submission_imports_is_one_submission(
    source: str, others: list[str], tmp_path: Path
) -> None:
    folder = write(tmp_path / "dora", *others, submission=source)
    if "__init__.py" in others:
        (folder / "__init__.py").write_text('"""Nothing."""\n')
    assert ids(find_submissions(folder)) == ["dora"]


def test_modules_are_followed_through_each_other(tmp_path: Path) -> None:
    folder = write(tmp_path / "dora", "parts/third.py", submission="import first", first="import parts.third", last="")
    (folder / "parts" / "third.py").write_text("import last\nfrom .fourth import x")
    assert ids(find_submissions(folder)) == ["dora"]
    write(folder, "fourth.py")
    with pytest.raises(NoSubmissions, match=r"holds submission\.py and what it does not import: fourth\.py\."):
        find_submissions(folder)


@pytest.mark.parametrize(
    "other", ["anna.py", "anna.ipynb", "anna.zip", "anna/submission.py", "anna/hw/x.ipynb", "helper.zip", "ANNA.PY"]
)
@pytest.mark.parametrize("source", ["import helper", "import (", "import numpy as anna"])
def test_a_folder_that_could_be_a_class_or_one_submission_is_asked_about(
    source: str, other: str, tmp_path: Path
) -> None:
    write(tmp_path, "notes.txt", other, submission=source)
    said = rf"holds submission\.py and what it does not import: {other.partition('/')[0]}\. Is this one submission, or "
    with pytest.raises(NoSubmissions, match=f"{said}a class of 3\\? Say --one or --class"):
        find_submissions(tmp_path)
    assert ids(find_submissions(tmp_path, "one")) == [tmp_path.name]
    assert len(find_submissions(tmp_path, "class")) == 3


def test_an_empty_package_file_makes_no_class_one_submission(tmp_path: Path) -> None:
    write(tmp_path, "anna.py", "ben/__init__.py")
    (tmp_path / "__init__.py").write_text("# made by an editor\n")
    found = find_submissions(tmp_path)
    assert (ids(found), found.left_out) == (["anna", "ben"], ("__init__.py",))
    ben = found.handed[1].read(SMALL)
    assert ben.files == {"__init__.py": CODE}, "a package that is handed in is a submission"


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("README", True), ("readme.de.md", True), ("LICENSE", True), ("export.csv", True), ("Grades.XLSX", True),
        ("Thumbs.db", True), ("readme_anna.txt", False), ("anna.md", False), ("anna.txt", False), ("anna.pdf", False),
        ("anna", False), ("anna.tar.gz", False), ("README.py", False), ("readme.zip", False),
        ("export.csv/a.py", False), ("submission_metadata.yml", True),
    ],
)  # fmt: skip
def test_only_what_no_student_hands_in_is_left_out(name: str, left_out: bool, tmp_path: Path) -> None:
    write(tmp_path, "zoe.py", name)
    found = find_submissions(tmp_path)
    assert (found.left_out, len(found)) == (((name,), 1) if left_out else ((), 2))


def test_a_class_is_a_folder(tmp_path: Path) -> None:
    path = zipped(tmp_path / "class.zip", {"anna.py": CODE})
    with pytest.raises(NoSubmissions, match=r"class\.zip: is one file, and a class is a folder: unpack it"):
        find_submissions(path, "class")
    assert ids(find_submissions(path, "one")) == ["class"]


def test_ids_are_told_apart_and_safe(tmp_path: Path) -> None:
    for name in ("alice.py", "Alice.py", "é:*x.py"):
        (tmp_path / name).write_bytes(CODE)
    zipped(tmp_path / "alice.zip", {"submission.py": CODE})
    first = ids(find_submissions(tmp_path))
    assert len({id_.casefold() for id_ in first}) == 4
    assert "é__x" in first
    (tmp_path / "alice.zip").unlink()
    # What a student is called does not depend on whether somebody else's file is there.
    assert {*ids(find_submissions(tmp_path))} <= {*first}


def test_no_file_can_be_named_as_the_id_of_another(tmp_path: Path) -> None:
    for name in ("s.py", "S.py"):
        (tmp_path / name).write_bytes(CODE)
    taken = ids(find_submissions(tmp_path))
    for id_ in taken:
        (tmp_path / f"{id_}.py").write_bytes(CODE)
    found = ids(find_submissions(tmp_path))
    assert len({id_.casefold() for id_ in found}) == len(found) == 4
    assert {*taken} <= {*found}


@pytest.mark.parametrize(
    "name", ["\N{CJK COMPATIBILITY IDEOGRAPH-FA6C}" * 84, "x" * 250, "\N{ROMAN NUMERAL EIGHT}" * 80]
)
def test_the_folder_of_every_id_can_be_made(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"{name}.py").write_bytes(CODE)
    (id_,) = ids(find_submissions(tmp_path / "in"))
    (tmp_path / id_).mkdir()


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("CON", "CON_"),
        ("nul.x", "nul_.x"),
        ("Aux .y", "Aux_.y"),
        ("com\N{SUPERSCRIPT ONE}", "com\N{SUPERSCRIPT ONE}_"),
        ("conan", "conan"),
        ("lpt10", "lpt10"),
        ("x.con", "x.con"),
    ],
)
def test_no_id_is_a_device_of_windows(name: str, id_: str, tmp_path: Path) -> None:
    """Windows cannot unpack results with such a name."""
    (tmp_path / f"{name}.py").write_bytes(CODE)
    assert ids(find_submissions(tmp_path)) == [id_]


def test_a_name_that_is_no_text_is_a_problem_and_no_end_of_grading(tmp_path: Path) -> None:
    for name in (b"\xff.txt", b"\xfe.py", b"\x1b[2J.doc"):
        (tmp_path / os.fsdecode(name)).write_bytes(CODE)
    found = find_submissions(tmp_path)
    read = [handed.read(SMALL) for handed in found.handed]
    said = "is no .py file, no notebook, no folder and no zip"
    assert sorted(one.problem for one in read) == ["", rf"\udcff.txt {said}", rf"\x1b[2J.doc {said}"]


def test_the_case_of_a_suffix_means_nothing(tmp_path: Path) -> None:
    (tmp_path / "HW1.PY").write_bytes(CODE)
    assert only(tmp_path).files == {"submission.py": CODE}


def test_what_lies_beside_the_folder_of_a_submission_is_left_out(tmp_path: Path) -> None:
    beside = {"report.pdf": b"", "hw/submission.py": CODE, "hw/data/w.npz": b"1", "hw2/notes.py": b""}
    assert only(zipped(tmp_path / "m.zip", beside)).files == {"submission.py": CODE, "data/w.npz": b"1"}
    two = {"report.pdf": b"", "v1/submission.py": CODE, "v2/submission.py": CODE}
    said = "there is no submission.py among v1/submission.py, v2/submission.py"
    assert only(zipped(tmp_path / "m.zip", two)).problem == said


def test_what_is_passed_over_may_be_called_anything(tmp_path: Path) -> None:
    odd = {f"hw/.venv/{'a/' * 20}x.h": b"", "__MACOSX/hw/._Icon\r": b"", "hw/Icon\r": b"", f"hw/.{'x' * 300}": b""}
    assert only(zipped(tmp_path / "m.zip", {"hw/submission.py": CODE, **odd})).files == {"submission.py": CODE}


def test_an_archive_of_windows_parts_folders_with_backslashes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for name in ("hw\\submission.py", "hw\\data\\x.txt"):
            info = zipfile.ZipInfo(name)
            info.create_system = 0
            archive.writestr(info, CODE)
    assert only(tmp_path / "m.zip").files == {"submission.py": CODE, "data/x.txt": CODE}
    with zipfile.ZipFile(tmp_path / "m.zip", "a") as archive:
        info = zipfile.ZipInfo("hw\\..\\..\\x.py")
        info.create_system = 0
        archive.writestr(info, CODE)
    assert only(tmp_path / "m.zip").problem == "the name 'hw/../../x.py' leads out of its folder or is none"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"../evil.py": CODE}, "the name '../evil.py' leads out of its folder or is none"),
        ({"/etc/x.py": CODE}, "the name '/etc/x.py' is not relative, or has a backslash or a colon"),
        ({"a\\b.py": CODE}, "the name 'a\\\\b.py' is not relative, or has a backslash or a colon"),
        ({"C:x.py": CODE}, "the name 'C:x.py' is not relative, or has a backslash or a colon"),
        ({"a/./b.py": CODE}, "the name 'a/./b.py' leads out of its folder or is none"),
        ({"a\nb.py": CODE}, "the name 'a\\nb.py' has characters that cannot be printed"),
        ({"x" * 300 + ".py": CODE}, "is too long or too deep"),
        ({f"{n}.py": CODE for n in range(6)}, "has more than 5 files"),
        ({"big.py": os.urandom(900_000), "b2.bin": os.urandom(100_000), "b3": os.urandom(50_000)}, "more than 1 MiB"),
        ({"a": CODE, "a/b.py": CODE}, "has 'a' as a file and as a folder"),
        ({"a.py": CODE, "b.py": CODE}, "there is no submission.py among a.py, b.py"),
        ({"hw.txt": b"{}"}, "there is no .py file and no notebook; what was handed in is hw.txt"),
        ({"hw.ipynb": b"{}"}, "hw.ipynb is no notebook: "),
        ({"a.ipynb": b"{}", "b.ipynb": b"{}"}, "there is no submission.py among a.ipynb, b.ipynb"),
        ({}, "nothing was handed in: it is empty"),
    ],
)
def test_a_bad_zip_is_a_submission_with_a_problem(files: dict[str, bytes], problem: str, tmp_path: Path) -> None:
    got = only(zipped(tmp_path / "mallory.zip", files))
    assert problem in got.problem
    assert got.files == {}


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    got = only(zipped(tmp_path / "m.zip", {"submission.py": CODE}, passwd="/etc/passwd"))
    assert got.problem == "'passwd' is a link in the zip: hand in the file itself"


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("submission.py", CODE)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("submission.py", b"import os\n")
    assert only(tmp_path / "m.zip").problem == "the zip has 'submission.py' twice"


def test_a_file_that_ends_too_early_is_explained(tmp_path: Path) -> None:
    """Its size in the list of files is more than the zip has."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("submission.py", "x = 1\n")
    raw = bytearray(buffer.getvalue())
    struct.pack_into("<II", raw, raw.find(b"PK\x01\x02") + 20, 1 << 31, 1 << 31)
    (tmp_path / "m.zip").write_bytes(raw)
    assert only(tmp_path / "m.zip").problem == "'submission.py' cannot be unpacked: the zip ends within it"


def test_a_bomb_is_counted_as_it_unpacks(tmp_path: Path) -> None:
    """It says that it is small, and 64 MiB of zeros come out of it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("submission.py", bytes(64 << 20))
    raw = bytearray(buffer.getvalue())
    for signature, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", raw, raw.find(signature) + at, 100)
    (tmp_path / "m.zip").write_bytes(raw)
    got = only(tmp_path / "m.zip", SubmissionLimits(size=100))
    assert "cannot be unpacked" in got.problem or "times its size" in got.problem
    struct.pack_into("<I", raw, raw.find(b"PK\x01\x02") + 24, 64 << 20)
    (tmp_path / "m.zip").write_bytes(raw)
    assert (
        only(tmp_path / "m.zip", SubmissionLimits(size=100)).problem
        == "'submission.py' unpacks to more than 200 times its size"
    )
    assert only(tmp_path / "m.zip").problem in ("has more than 1 MiB of files",)


def test_a_list_of_a_million_files_is_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for n in range(20_000):
            archive.writestr(f".junk/{n:060}", b"")
    assert only(tmp_path / "m.zip", SubmissionLimits(size=16)).problem == "the zip lists too many files"


@pytest.mark.parametrize("kind", ["of 64 bits", "with a second sign of its end"])
def test_nor_is_one_that_says_it_is_short(kind: str, tmp_path: Path) -> None:
    """Where the list ends is said at several places, and the library believes other ones than a first look does."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("submission.py", CODE)
        for n in range(60_000):
            info = zipfile.ZipInfo(f".junk/{n:060}")
            info.header_offset = info.CRC = 0
            archive.filelist.append(info)
    raw = buffer.getvalue()
    at = raw.rfind(b"PK\x05\x06")
    size, offset = struct.unpack("<LL", raw[at + 12 : at + 20])
    if kind == "of 64 bits":
        longer = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 60_001, 60_001, size, offset)
        end = (
            longer
            + struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)
            + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 46, 0, 0)
        )
    else:
        end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, size, int.from_bytes(b"PK\5\6", "little"), 0)
    (tmp_path / "m.zip").write_bytes(raw[:at] + end)
    assert only(tmp_path / "m.zip", SubmissionLimits(size=16)).problem == "the zip lists too many files"


@pytest.mark.parametrize("data", [b"", b"no zip at all", b"PK\x05\x06" + bytes(10), b"PK\x03\x04" + bytes(100)])
def test_what_is_no_zip_is_said_to_be_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.zip").write_bytes(data)
    assert "'m.zip' is no readable zip: " in only(tmp_path / "m.zip").problem


def test_damaged_zips_are_problems_and_never_exceptions(tmp_path: Path) -> None:
    whole = zipped(tmp_path / "whole.zip", {"submission.py": CODE * 20, "data/x.txt": b"abc" * 50}).read_bytes()
    (tmp_path / "whole.zip").unlink()
    path = tmp_path / "m.zip"
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        got = only(path)
        assert bool(got.problem) != bool(got.files)


def test_links_in_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_bytes(b"SECRET = 1\n")
    folder = tmp_path / "class"
    (folder / "mallory").mkdir(parents=True)
    (folder / "mallory" / "submission.py").symlink_to(tmp_path / "secret.py")
    (folder / "trudy.py").symlink_to(tmp_path / "secret.py")
    (folder / "walter").symlink_to(tmp_path)
    found = find_submissions(folder)
    problems = {handed.id: handed.read(SMALL) for handed in found.handed}
    assert problems["mallory"].problem == "'submission.py' is a link: hand in the file itself"
    assert problems["trudy"].problem == problems["walter"].problem == "is a link: hand in the file itself"
    assert not any(submission.files for submission in problems.values())


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "mallory").mkdir()
    os.mkfifo(tmp_path / "mallory" / "submission.py")
    os.mkfifo(tmp_path / "trudy.py")
    os.mkfifo(tmp_path / "walter.zip")
    found = find_submissions(tmp_path)
    got = [handed.read(SMALL).problem for handed in found.handed]
    assert got == ["'submission.py' is neither a file nor a folder", "'trudy.py' is no file", "'walter.zip' is no file"]


def test_what_is_no_submission_is_a_student_with_a_problem(tmp_path: Path) -> None:
    (tmp_path / "alice.py").write_bytes(CODE)
    (tmp_path / "bob.tar.gz").write_bytes(b"")
    found = find_submissions(tmp_path)
    problems = [handed.read(SMALL).problem for handed in found.handed]
    assert problems == ["", "bob.tar.gz is no .py file, no notebook, no folder and no zip"]


def test_nothing_to_grade_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoSubmissions, match="nowhere: there is nothing there"):
        find_submissions(tmp_path / "nowhere")
    with pytest.raises(NoSubmissions, match=r"holds no \.py file, no notebook, no folder and no zip"):
        find_submissions(tmp_path)
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(NoSubmissions, match=r"x\.txt: is no \.py file, no notebook, no folder and no zip"):
        find_submissions(tmp_path / "x.txt")


@pytest.mark.parametrize("twin", ["submission/__init__.py", "submission.abi3.so", "submission/__init__.cpython-311.so"])
@pytest.mark.parametrize("home", ["", "homework/"])
def test_a_file_that_python_imports_instead_of_the_one_that_people_read_is_refused(
    twin: str, home: str, tmp_path: Path
) -> None:
    others = {} if not home else {"report.txt": b""}
    handed = only(zipped(tmp_path / "a.zip", {f"{home}submission.py": CODE, f"{home}{twin}": b"", **others}))
    assert handed.problem == f"Python imports '{twin}' instead of submission.py: hand in one of them"
    assert only(zipped(tmp_path / "b.zip", {"submission.py": CODE, "submission/data.txt": b""})).problem == ""


def test_two_spellings_of_one_name_are_refused_in_a_folder_as_in_a_zip(tmp_path: Path) -> None:
    folder = tmp_path / "pam"
    folder.mkdir()
    (folder / "submission.py").write_bytes(CODE)
    (folder / "caf\N{LATIN SMALL LETTER E WITH ACUTE}.txt").write_bytes(b"1")
    (folder / "cafe\N{COMBINING ACUTE ACCENT}.txt").write_bytes(b"2")
    if len(list(folder.iterdir())) < 3:
        pytest.skip("this file system takes both for one")
    assert only(folder).problem == "the folder has 'café.txt' twice, in two spellings of its letters"
