"""The example that continues sentences: its pieces one by one, then all of it as a reader runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from goldformer.reference_impl import DecoderOnlyModel
from repository import REPOSITORY, load_module

SCRIPT = REPOSITORY / "examples" / "continue_text.py"


@pytest.fixture
def example():
    """The script as a module of its own, so that a test may change it."""
    return load_module("continue_example", SCRIPT)


@pytest.fixture
def untrained(example, monkeypatch):
    """The script with a training that must not begin."""
    monkeypatch.setattr(example, "train", lambda *_, **__: pytest.fail("trained"))
    return example


def run(example, *arguments):
    return CliRunner().invoke(example.main, arguments)


def test_no_two_sentences_begin_with_the_same_prompt(example):
    prompts = {tuple(sentence.split()[: example.PROMPT]) for sentence in example.SENTENCES}
    assert len(prompts) == len(example.SENTENCES)
    assert max(len(sentence.split()) for sentence in example.SENTENCES) - example.PROMPT < example.MAX_NEW_TOKENS


def test_every_sentence_comes_back_from_its_ids(example):
    words = example.list_words(example.SENTENCES)
    for sentence in example.SENTENCES:
        ids = example.find_ids(sentence, words)
        assert min(ids) > max(example.PAD, example.EOS)
        assert example.read(ids, words) == sentence
        assert example.read([*ids, example.EOS, example.PAD], words) == sentence


def test_prompts_are_padded_on_the_left_and_sentences_on_the_right(example):
    assert example.pad([[5], [6, 7]], left=True).tolist() == [[example.PAD, 5], [6, 7]]
    assert example.pad([[5], [6, 7]], left=False).tolist() == [[5, example.PAD], [6, 7]]


def test_training_lowers_the_loss_the_same_way_for_a_seed(example):
    words = example.list_words(example.SENTENCES)
    ids = example.pad([example.find_ids(sentence, words) for sentence in example.SENTENCES], left=False)

    def losses(seed):
        torch.manual_seed(seed)
        return example.train(DecoderOnlyModel(len(words), 8, 2, 1, 12, 1, pad_id=example.PAD), ids, epochs=10)

    first = losses(3)
    assert first[-1] < first[0]
    assert losses(3) == first != losses(4)


def test_a_prompt_is_continued_alike_alone_and_beside_a_longer_one(example):
    words = example.list_words(example.SENTENCES)
    torch.manual_seed(1)
    model = DecoderOnlyModel(len(words), 8, 2, 1, 12, 1, pad_id=example.PAD, dtype=torch.float64)
    [alone] = example.continue_prompts(model, ["the cat"], words)
    assert example.continue_prompts(model, ["the cat", "a bird sang"], words)[0] == alone != ""


def test_sentences_that_were_not_learnt_are_named_and_fail(example):
    result = run(example, "--epochs", "1")
    assert result.exit_code == 1
    wrong = sum("wrong, taught as: " in line for line in result.stdout.splitlines())
    assert wrong > 0
    assert result.stderr == (
        f"Error: {wrong} of 8 sentences are not continued as taught: train longer, with more --epochs\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "the king"], "Invalid value for --prompt: 'king' is not in the vocabulary: known are the, cat, "),
        (["--prompt", " "], "Invalid value for --prompt: the prompt is empty and must have a word"),
        (["--epochs", "0"], "Invalid value for '--epochs'"),
    ],
)
def test_a_bad_option_is_refused_before_the_training(untrained, arguments, message):
    result = run(untrained, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_whole_example_continues_every_sentence():
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, encoding="utf-8", env={"PYTHONIOENCODING": "utf-8"},
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  the cat sat … on the mat" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "all 8 sentences are continued as taught"
