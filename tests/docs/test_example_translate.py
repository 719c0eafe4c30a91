"""The example that translates: its pieces one by one, then all of it as a reader runs it."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sys
import unicodedata

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from rich.console import Console

from goldformer.reference_impl import Transformer, shift_right
from repository import REPOSITORY, load_module

SCRIPT = REPOSITORY / "examples" / "translate.py"
WORDS = r"[^\W\d_]+|<eos>"


@pytest.fixture
def example():
    """The script as a module of its own, so that a test may change it."""
    return load_module("translate_example", SCRIPT)


@pytest.fixture
def vocabulary(example):
    return example.Vocabulary.of(example.PAIRS)


@pytest.fixture
def tiny(example, monkeypatch):
    """The script with two words to learn, which it does in a moment."""
    monkeypatch.setattr(example, "PAIRS", (("merci", "thanks"),))
    return example


@pytest.fixture
def untrained(example, monkeypatch):
    """The script with a training that must not begin."""
    monkeypatch.setattr(example, "train", lambda *_, **__: pytest.fail("trained"))
    return example


def make_model(example, vocabulary, *, heads=2, layers=2, seed=0):
    torch.manual_seed(seed)
    return Transformer(len(vocabulary.words), 8, heads, layers, layers, 12, pad_id=example.PAD, dropout=0.5).eval()


def run(example, *arguments):
    return CliRunner().invoke(example.main, arguments)


# words and batches


def test_the_sentences_of_the_document_are_taught(example, vocabulary):
    taught = dict(example.PAIRS)
    assert taught["je suis étudiant"] == "i am a student"
    assert taught["merci"] == "thanks"
    assert {"a", "am", "i", "thanks", "student", "<eos>"} <= set(vocabulary.words)


def test_every_sentence_comes_back_from_its_ids(example, vocabulary):
    assert len(set(vocabulary.words)) == len(vocabulary.words)
    for sentence in (sentence for pair in example.PAIRS for sentence in pair):
        ids = vocabulary.ids(sentence)
        assert min(ids) > max(example.PAD, example.BOS, example.EOS)
        assert " ".join(vocabulary.read(ids)) == sentence


def test_the_special_words_have_their_ids(example, vocabulary):
    assert [vocabulary.words[i] for i in (example.PAD, example.BOS, example.EOS)] == ["<pad>", "<bos>", "<eos>"]


def test_reading_ends_with_eos(example, vocabulary):
    (thanks,) = vocabulary.ids("thanks")
    assert vocabulary.read([thanks, example.EOS, example.PAD, thanks]) == ["thanks", "<eos>"]
    assert vocabulary.read([thanks, thanks]) == ["thanks", "thanks"]


def test_a_sentence_may_be_typed_in_other_ways(vocabulary):
    typed = unicodedata.normalize("NFD", "  Je suis  ÉTUDIANT ")
    assert vocabulary.ids(typed) == vocabulary.ids("je suis étudiant")


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("je suis roi", r"'roi' is not in the vocabulary: known are je, suis, étudiant, i, am, "),
        ("", r"the sentence is empty and must have a word"),
    ],
)
def test_a_sentence_that_cannot_be_written_is_named(vocabulary, sentence, message):
    with pytest.raises(ValueError, match=message):
        vocabulary.ids(sentence)


def test_a_batch_is_padded_behind_and_its_targets_end_with_eos(example, vocabulary):
    source, target = example.make_batch(example.PAIRS, vocabulary)
    assert (source.dtype, target.dtype) == (torch.int64, torch.int64)
    for pair, french, english in zip(example.PAIRS, source.tolist(), target.tolist(), strict=True):
        for sentence, row, end in ((pair[0], french, []), (pair[1], english, [example.EOS])):
            ids = vocabulary.ids(sentence) + end
            assert row == ids + [example.PAD] * (len(row) - len(ids))
    # Or neither padding mask had anything to hide.
    for ids in (source, target):
        assert (ids == example.PAD).any()
        assert (ids != example.PAD).all(dim=1).any()


# training


def test_the_loss_is_that_of_torch_and_leaves_padding_out(example):
    logits = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[3, 4, 2, example.PAD], [2, example.PAD, example.PAD, example.PAD], [5, 6, 3, 2]])
    flat = (logits.flatten(0, 1), target.flatten())

    torch.testing.assert_close(example.loss_of(logits, target, 0.0), F.cross_entropy(*flat, ignore_index=example.PAD))
    smooth = F.cross_entropy(*flat, ignore_index=example.PAD, label_smoothing=0.1)
    # torch's is the cross-entropy with the smoothed target, ours the divergence from it: less the target's entropy.
    p = torch.tensor([0.9 + 0.1 / 7] + [0.1 / 7] * 6)
    torch.testing.assert_close(example.loss_of(logits, target, 0.1), smooth + (p * p.log()).sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_training_lowers_the_loss_the_same_way_for_a_seed(example, vocabulary, smoothing):
    batch = example.make_batch(example.PAIRS, vocabulary)

    def losses(seed):
        model = make_model(example, vocabulary, seed=seed)
        found = example.train(model, *batch, epochs=20, smoothing=smoothing)
        assert not model.training
        return found

    first = losses(3)
    assert len(first) == 20
    assert first[-1] < first[0]
    assert losses(3) == first
    assert losses(4) != first


def test_training_shows_a_bar_with_the_loss_on_a_terminal(example, vocabulary, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(example, "Console", lambda **_: Console(file=screen, force_terminal=True, width=80))
    losses = example.train(make_model(example, vocabulary), *example.make_batch(example.PAIRS, vocabulary), epochs=3)
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue())
    assert f"3/3 loss {losses[-1]:.3f}" in shown


# attention


def test_the_attention_is_that_of_the_model(example, vocabulary):
    model = make_model(example, vocabulary)
    source, target = example.make_batch(example.PAIRS, vocabulary)
    seen = []
    with model.decoder[-1].register_forward_hook(lambda _module, _inputs, result: seen.append(result.cross_weights)):
        model(source, shift_right(target, example.BOS))

    assert torch.equal(example.cross_attention(model, source, target), seen[0].mean(dim=1))


def test_a_map_has_nothing_for_padding_and_adds_up_to_one(example, vocabulary):
    model = make_model(example, vocabulary)
    source, target = example.make_batch(example.PAIRS, vocabulary)
    weights = example.cross_attention(model, source, target)

    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(target.shape))
    assert not weights.masked_select((source == example.PAD)[:, None, :]).any()
    alone, words = source[1:2, :1], target[1:2, :2]  # merci: thanks <eos>
    torch.testing.assert_close(example.cross_attention(model, alone, words), weights[1:2, :2, :1])


def test_a_text_map_is_aligned_and_has_more_ink_for_more_weight(example):
    weights = torch.tensor([[0.0, 0.1999, 0.8001], [0.2001, 0.4001, 0.6001], [1.0, 0.0, 0.0]])
    assert example.text_map(weights, ["je", "extraordinaire", "étudiant"], ["i", "student", "<eos>"]).splitlines() == [
        "         je              extraordinaire  étudiant",
        "i           0.00            0.20         ██ 0.80",
        "student  ░░ 0.20         ▒▒ 0.40         ▓▓ 0.60",
        "<eos>    ██ 1.00            0.00            0.00",
    ]


# pictures


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("french", "english"),
    [(["merci"], ["thanks", "<eos>"]), (["étudiant", "où", "cœur"] * 5, ["a"]), (["je"], ["i"] * 20)],
    ids=["small", "wide", "tall"],
)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_is_drawn_with_every_letter(example, tmp_path, french, english, suffix):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")
    path = tmp_path / f"map.{suffix}"
    # A letter that the font lacks is a warning, and warnings are errors here; so is a map too small for its labels.
    example.save_picture(path, torch.rand(len(english), len(french)), french, english)

    begins = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(begins[suffix])


def test_a_picture_grows_with_its_words(example, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install matplotlib")

    def size(columns, rows):
        path = tmp_path / "map.png"
        example.save_picture(path, torch.rand(rows, columns), ["étudiant"] * columns, ["student"] * rows)
        header = path.read_bytes()[16:24]  # width and height, as the PNG header has them
        return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")

    small, wide, tall = size(5, 5), size(10, 5), size(5, 10)
    assert wide[0] > small[0]
    assert wide[1] == small[1]
    assert tall[0] == small[0]
    assert tall[1] > small[1]


def test_without_matplotlib_all_but_the_picture_is_there(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(tiny, "--epochs", "60", "--sentence", "merci", "--picture", str(tmp_path / "map.png"))

    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == ["no picture: matplotlib is missing; pip install matplotlib"]
    assert "thanks  ██ 1.00" in result.stdout
    assert not list(tmp_path.iterdir())


def test_no_picture_is_drawn_where_none_is_wanted(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(tiny, "--epochs", "60", "--sentence", "merci", "--no-picture")

    assert (result.exit_code, result.stderr) == (0, "")
    assert "picture" not in result.stdout
    assert not list(tmp_path.iterdir())


# the command


def test_sentences_that_were_not_learnt_are_named_and_fail(example):
    result = run(example, "--epochs", "1", "--no-picture")

    assert result.exit_code == 1
    wrong = sum("wrong, taught as: " in line for line in result.stdout.splitlines())
    assert wrong > 0
    assert result.stderr == (
        f"Error: {wrong} of 14 sentences are not translated as taught: train longer, with more --epochs\n"
    )


def test_the_seed_decides(tiny):
    def printed(seed):
        return run(tiny, "--seed", seed, "--epochs", "3", "--sentence", "merci", "--no-picture").stdout

    first = printed("5")
    assert "merci" in first
    assert printed("5") == first
    assert printed("6") != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sentence", "je suis roi"], "Invalid value for --sentence: 'roi' is not in the vocabulary"),
        (["--sentence", " "], "Invalid value for --sentence: the sentence is empty"),
        (["--picture", "map.txt"], "map.txt must be a .png, .svg or .pdf in a folder that exists"),
        (["--picture", "absent/map.png"], "map.png must be a .png, .svg or .pdf in a folder that exists"),
        (["--epochs", "0"], "Invalid value for '--epochs'"),
        (["--smoothing", "2"], "Invalid value for '--smoothing'"),
    ],
)
def test_a_bad_option_is_refused_before_the_training(untrained, arguments, message):
    result = run(untrained, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_help_tells_every_option_and_the_exit_statuses(untrained):
    result = run(untrained, "-h")
    assert result.exit_code == 0
    assert all(option.help for option in untrained.main.params)
    assert "Exit status: 0 every sentence is translated as taught · 1 one is not · 2" in " ".join(result.stdout.split())


# The tests above train smaller models; this one takes half a minute.
@pytest.mark.sample(0)
def test_the_whole_example_as_the_readme_shows_it(tmp_path):
    picture = tmp_path / "map.png"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, SCRIPT, "--picture", picture],
        env=environment, capture_output=True, encoding="utf-8", timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong" not in done.stdout
    assert done.stdout.splitlines()[-1] == "all 14 sentences are translated as taught"
    assert picture.exists() == (importlib.util.find_spec("matplotlib") is not None)

    # The digits differ between machines, the words do not.
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```console\n\$ make example.*?\n(.*?)```", readme, flags=re.DOTALL)
    printed = [re.findall(WORDS, line) for line in done.stdout.splitlines()]
    for line in shown.splitlines():
        assert re.findall(WORDS, line) in printed, line
