"""Continue sentences with the reference's decoder-only model: train it on a few of them, then generate with the cache.

    python examples/continue_text.py

Each sentence is begun by its first words, and the model writes the rest. Prompts of different lengths are in one call,
padded on the left.

Axes: batch counts sentences, seq words.
"""

from collections.abc import Sequence

import click
import torch
from torch import Tensor

from goldformer import reference_impl as ref

# No two of them begin with the same three words, so a prompt of three words has one continuation.
SENTENCES = (
    "the cat sat on the mat",
    "the dog ran after the cat",
    "the cat ran after the ball",
    "a bird sang in the tree",
    "a dog sat under the tree",
    "the bird saw the dog",
    "a cat saw a bird on the mat",
    "the dog sang",
)
PAD, EOS = range(2)
SPECIAL = ("<pad>", "<eos>")

D_MODEL, HEADS, KV_HEADS, D_FF, LAYERS = 32, 4, 2, 64, 2
LEARNING_RATE = 3e-3
PROMPT = 3  # words
MAX_NEW_TOKENS = 8


def list_words(sentences: Sequence[str]) -> tuple[str, ...]:
    """Collect the words in the order in which they appear, after the special ones; a word's id is its place."""
    return (*SPECIAL, *dict.fromkeys(word for sentence in sentences for word in sentence.split()))


def find_ids(sentence: str, words: Sequence[str]) -> list[int]:
    """Write a sentence as numbers; ValueError for one without words, or with a word that is not known."""
    found = sentence.lower().split()
    if not found:
        raise ValueError("the prompt is empty and must have a word")
    for word in found:
        if word not in words[len(SPECIAL) :]:
            raise ValueError(f"{word!r} is not in the vocabulary: known are {', '.join(words[len(SPECIAL) :])}")
    return [words.index(word) for word in found]


def read(ids: Sequence[int], words: Sequence[str]) -> str:
    """Write numbers as words, up to <eos> and without it."""
    ended = ids[: [*ids, EOS].index(EOS)]
    return " ".join(words[i] for i in ended)


def pad(rows: Sequence[list[int]], *, left: bool) -> Tensor:
    """Lay sentences side by side, the shorter ones filled up with padding: (batch, seq of the longest)."""
    longest = max(len(row) for row in rows)
    fill = [[PAD] * (longest - len(row)) for row in rows]
    return torch.tensor([[*f, *row] if left else [*row, *f] for f, row in zip(fill, rows, strict=True)])


def train(model: ref.DecoderOnlyModel, ids: Tensor, *, epochs: int) -> list[float]:
    """Train on all sentences (batch, seq) at once, epoch after epoch, and return the losses."""
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    losses: list[float] = []
    for _ in range(epochs):
        logits = model(ids[:, :-1]).logits  # (batch, seq − 1, vocab): each word predicts the next
        loss = ref.cross_entropy(logits, ids[:, 1:], PAD)[0]
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        optimiser.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def continue_prompts(model: ref.DecoderOnlyModel, prompts: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return what the model writes after each prompt, in one call with the cache."""
    ids = pad([find_ids(prompt, words) for prompt in prompts], left=True)  # (batch, seq)
    new = ref.generate(model, ids, eos_id=EOS, max_new_tokens=MAX_NEW_TOKENS)  # (batch, max_new_tokens)
    return [read(row, words) for row in new.tolist()]


@click.command(
    epilog="Exit status: 0 every sentence is continued as taught · 1 one is not · 2 a bad option.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.option("--seed", default=0, help="Of the weights.")
@click.option("--epochs", type=click.IntRange(1), default=200, help="Steps of Adam, each on all sentences.")
@click.option("--prompt", default="the", help="Words that begin one more sentence.")
def main(seed: int, epochs: int, prompt: str) -> None:
    """Train a small decoder-only model on a few sentences, and let it continue their first words."""
    words = list_words(SENTENCES)
    try:
        find_ids(prompt, words)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--prompt") from None
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the arrays are small: more threads would wait for each other
    model = ref.DecoderOnlyModel(len(words), D_MODEL, HEADS, KV_HEADS, D_FF, LAYERS, pad_id=PAD)
    losses = train(model, pad([[*find_ids(s, words), EOS] for s in SENTENCES], left=False), epochs=epochs)
    click.echo(f"{epochs} epochs on {len(SENTENCES)} sentences, loss {losses[0]:.3f} → {losses[-1]:.3f}\n")

    prompts = [" ".join(sentence.split()[:PROMPT]) for sentence in SENTENCES]
    *written, more = continue_prompts(model, [*prompts, prompt], words)
    wrong = 0
    for sentence, begun, rest in zip(SENTENCES, prompts, written, strict=True):
        is_right = f"{begun} {rest}".strip() == sentence
        wrong += not is_right
        click.echo(f"  {begun} … {rest}{'' if is_right else f'   wrong, taught as: {sentence}'}")
    click.echo(f"\n  {prompt} … {more}")
    if wrong:
        message = f"{wrong} of {len(SENTENCES)} sentences are not continued as taught: train longer, with more --epochs"
        raise click.ClickException(message)
    click.echo(f"\nall {len(SENTENCES)} sentences are continued as taught")


if __name__ == "__main__":
    main()
