"""A file that is imported alone or as part of a package, and what is said where neither works."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from goldformer.adapters.imports import forget_modules
from goldformer.adapters.inference.packages import import_target
from goldformer.adapters.protocol import AdapterError


@pytest.fixture
def folder(tmp_path):
    with forget_modules(tmp_path):
        yield tmp_path


def write_files(folder, **files):
    for name, text in files.items():
        path = folder / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_a_file_alone_is_imported_by_its_name(folder):
    write_files(folder, alone="X = 1")
    imported = import_target(folder / "alone.py")
    assert (imported.module.X, imported.name, imported.folder) == (1, "alone", folder)


@pytest.mark.parametrize(
    ("line", "name", "above", "width"),
    [
        ("from .width import WIDTH", "net_a.model", "repo", 3),
        ("from ..width import WIDTH", "repo.net_a.model", ".", 4),
        ("from net_a.width import WIDTH", "net_a.model", "repo", 3),
    ],
)
def test_a_file_of_a_package_is_imported_from_the_nearest_folder_that_works(folder, line, name, above, width):
    write_files(folder, repo__in__net_a__in__model=line, repo__in__net_a__in__width="WIDTH = 3")
    write_files(folder, repo__in__width="WIDTH = 4")
    imported = import_target(folder / "repo" / "net_a" / "model.py")
    assert (imported.name, imported.folder, imported.module.WIDTH) == (name, folder / above, width)


def test_a_file_named_as_its_package_is_imported_from_above(folder):
    write_files(folder, mine__in__mine="from mine.parts import PART", mine__in__parts="PART = 2")
    imported = import_target(folder / "mine" / "mine.py")
    assert (imported.module.PART, imported.name, imported.folder) == (2, "mine.mine", folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from .absent import X", "attempted relative import with no known parent package"),
        ("from .width import WIDTH\nimport package_of_nobody", "No module named 'package_of_nobody'"),
        ("raise ValueError('not today')", "ValueError: not today"),
        ("from .width import WIDTH\nraise ValueError('not today')", "ValueError: not today"),
    ],
)
def test_what_works_from_nowhere_is_told_with_its_reason_and_leaves_nothing(folder, text, message):
    write_files(folder, net_b__in__model=text, net_b__in__width="WIDTH = 3")
    path, known = list(sys.path), set(sys.modules)
    with pytest.raises(AdapterError, match=f"model.py could not be imported: .*{re.escape(message)}"):
        import_target(folder / "net_b" / "model.py")
    assert (sys.path, set(sys.modules) - known) == (path, set())


def test_what_a_file_next_to_it_misses_is_named_and_not_that_file(folder):
    write_files(folder, repo_g__in__model="from tools_g import X", repo_g__in__tools_g="import package_of_nobody")
    with pytest.raises(AdapterError, match=r"No module named 'package_of_nobody' \(.*tools_g.py:1\)"):
        import_target(folder / "repo_g" / "model.py")


def test_the_line_of_a_file_at_fault_is_named_where_it_works_only_from_above(folder):
    write_files(
        folder, net_h__in__model="from .width import WIDTH\nraise ValueError('no')", net_h__in__width="WIDTH = 3"
    )
    with pytest.raises(AdapterError, match=r"ValueError: no \(.*net_h/model.py:2\)"):
        import_target(folder / "net_h" / "model.py")


def test_a_failed_import_leaves_modules_of_libraries_as_they_are(folder):
    # In a process of its own, where the failed import is the first that needs torch.
    write_files(folder, net_d__in__model="import torch\nfrom .width import WIDTH", net_d__in__width="WIDTH = 3")
    code = (
        "from pathlib import Path; from goldformer.adapters.inference.packages import import_target;"
        "print(import_target(Path('net_d/model.py')).name)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("net_d.model\n", 0), run.stderr


def test_what_is_installed_in_a_folder_of_the_repository_is_kept(folder, monkeypatch):
    installed = folder / ".venv" / "site-packages"
    write_files(installed, library_f="X = 1")
    text = "from net_f.width import WIDTH\nimport library_f\nraise ImportError('not today')"
    write_files(folder, net_f__in__model=text, net_f__in__width="WIDTH = 3")
    monkeypatch.syspath_prepend(installed)
    with pytest.raises(AdapterError, match="No module named 'net_f'"):
        import_target(folder / "net_f" / "model.py")
    assert "library_f" in sys.modules
    assert not [name for name in sys.modules if name.startswith("net_f")]
    del sys.modules["library_f"]  # what is installed stays, also after the test
