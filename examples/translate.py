"""Translate French with the reference Transformer: train it on a few sentences, decode, look at its attention.

    python examples/translate.py

The example that the document "illustrated" tells on training and decoding, from end to end: "je suis étudiant"
becomes "i am a student <eos>", and "merci" becomes "thanks <eos>". Its six words (a, am, i, thanks, student, <eos>)
are among those here; some more sentences give the masks something to hide and the attention an order to find.

Axes: batch counts sentence pairs, source_seq French words, seq English words.
"""

import io
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import Tensor

from goldformer import reference_impl as ref
from goldformer.extras import install_hint

# Sentences differ in length, so that some are padded, and pronouns and adjectives change places. Words are combined
# freely, so that few can be guessed from the English before them: the decoder has to look at the French.
PAIRS = (
    ("je suis étudiant", "i am a student"),
    ("merci", "thanks"),
    ("je suis fatigué", "i am tired"),
    ("tu es content", "you are happy"),
    ("tu es étudiant", "you are a student"),
    ("je suis un étudiant fatigué", "i am a tired student"),
    ("je suis un chat content", "i am a happy cat"),
    ("tu es un chat fatigué", "you are a tired cat"),
    ("tu vois un étudiant content", "you see a happy student"),
    ("je vois un chat", "i see a cat"),
    ("tu vois le chat", "you see the cat"),
    ("je vois le chat fatigué", "i see the tired cat"),
    ("je te vois", "i see you"),
    ("tu me vois", "you see me"),
)

SPECIAL = ("<pad>", "<bos>", "<eos>")
PAD, BOS, EOS = range(3)

D_MODEL, D_FF = 32, 64
# One layer with one head has one attention map: there is none to choose.
HEADS, LAYERS = 1, 1
DROPOUT, LEARNING_RATE = 0.3, 3e-3
MAX_LENGTH = 10  # of a translation, <eos> included
BEAM_SIZE = TOP_BEAMS = 2
MAP = "cross-attention of the last decoder layer, mean over heads"


@dataclass(frozen=True)
class Vocabulary:
    """The words of both languages: the model has one table for source and target. A word's id is its place."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]]) -> Self:
        """Collect the words in the order in which they appear, after the three special ones."""
        seen = dict.fromkeys(word for pair in pairs for sentence in pair for word in sentence.split())
        return cls((*SPECIAL, *seen))

    def ids(self, sentence: str) -> list[int]:
        """Write a sentence as numbers; ValueError for one without words, or with a word that is not known."""
        # Some keyboards write é as two characters, an e and an accent.
        words = unicodedata.normalize("NFC", sentence).lower().split()
        if not words:
            raise ValueError("the sentence is empty and must have a word")
        for word in words:
            if word not in self.words:
                known = ", ".join(self.words[len(SPECIAL) :])
                raise ValueError(f"{word!r} is not in the vocabulary: known are {known}")
        return [self.words.index(word) for word in words]

    def read(self, ids: Sequence[int]) -> list[str]:
        """Read numbers as words, up to <eos> and with it: what comes after it is padding."""
        words = [self.words[i] for i in ids]
        return words[: words.index(SPECIAL[EOS]) + 1] if SPECIAL[EOS] in words else words


def pad(rows: Sequence[list[int]]) -> Tensor:
    """Lay sentences side by side, the shorter ones filled up with padding: (batch, seq of the longest)."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def make_batch(pairs: Sequence[tuple[str, str]], vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Write pairs as source (batch, source_seq) and target (batch, seq), whose sentences end with <eos>."""
    source = pad([vocabulary.ids(french) for french, _ in pairs])
    target = pad([[*vocabulary.ids(english), EOS] for _, english in pairs])
    return source, target


def loss_of(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Measure how far logits (batch, seq, vocab) are from target (batch, seq), on average over its words."""
    if smoothing == 0:
        return ref.cross_entropy(logits, target, PAD)[0]
    one_hot = ref.one_hot(target, logits.shape[-1]).to(logits.dtype)  # (batch, seq, vocab)
    wanted = ref.label_smoothing(one_hot, smoothing)  # (batch, seq, vocab)
    return ref.kl_divergence(wanted, logits)[target != PAD].mean()


def train(
    model: ref.Transformer, source: Tensor, target: Tensor, *, epochs: int, smoothing: float = 0.0
) -> list[float]:
    """Train on all pairs at once, epoch after epoch, and return the losses; the model is left in eval mode."""
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    read = ref.shift_right(target, BOS)  # (batch, seq): to predict a word, the decoder reads those before it
    console = Console(stderr=True)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    losses: list[float] = []
    model.train()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("training", total=epochs, loss=float("nan"))
        for _ in range(epochs):
            loss = loss_of(model(source, read).logits, target, smoothing)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            optimiser.step()
            losses.append(loss.item())
            progress.update(bar, advance=1, loss=losses[-1])
    model.eval()
    return losses


@torch.no_grad()
def cross_attention(model: ref.Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Compute how much each French word counts when an English one is predicted: (batch, seq, source_seq).

    This walks through the decoder as the model does in eval mode, and keeps the weights that its last layer gives
    besides its output. Row t is for word t of the target, which is predicted from the words before it.
    """
    read = ref.shift_right(target, BOS)  # (batch, seq)
    seq = read.shape[1]
    self_mask = ref.causal_mask(seq, seq) & ref.padding_mask(read, PAD)  # (batch, 1, seq, seq)
    memory_mask = ref.padding_mask(source, PAD)  # (batch, 1, 1, source_seq)
    memory = model.encode(source)  # (batch, source_seq, d_model)
    x = ref.positional_encoding(ref.token_embedding(read, model.table))  # (batch, seq, d_model)
    for layer in model.decoder:
        result: ref.DecoderLayerResult = layer(x, memory, self_mask, memory_mask)
        x = result.output  # (batch, seq, d_model)
    return result.cross_weights.mean(dim=1)  # over heads: (batch, seq, source_seq)


def text_map(weights: Tensor, french: Sequence[str], english: Sequence[str]) -> str:
    """Write a map (seq, source_seq) as text: a row for each English word, the more ink the more weight."""
    head, width = max(len(word) for word in english), max(7, *(len(word) for word in french))

    def line(first: str, cells: Sequence[str]) -> str:
        return "  ".join([first.ljust(head), *(cell.ljust(width) for cell in cells)]).rstrip()

    lines = [line("", french)]
    for word, row in zip(english, weights.tolist(), strict=True):
        lines.append(line(word, [f"{' ░▒▓█'[min(int(weight * 5), 4)] * 2} {weight:.2f}" for weight in row]))
    return "\n".join(lines)


def save_picture(path: Path, weights: Tensor, french: Sequence[str], english: Sequence[str]) -> None:
    """Draw a map (seq, source_seq) into a .png, .svg or .pdf; ModuleNotFoundError where matplotlib is missing."""
    from matplotlib.figure import Figure

    # In inches: columns as wide as the longest word, and room for the title however small the map.
    width = max(len(french) * (0.3 + 0.08 * max(len(word) for word in french)), 2.4)
    height = max(len(english) * 0.42, 1.3)
    figure = Figure(figsize=(width + 2.2, height + 1.3), layout="constrained")
    axes, bar = figure.subplots(1, 2, width_ratios=[width, 0.18])
    # Light is little and dark is much, on paper too; every picture has the same scale.
    cells = axes.pcolormesh(weights.numpy(), cmap="Blues", vmin=0, vmax=1, edgecolors="lightgray", linewidth=0.5)
    axes.set_xticks([i + 0.5 for i in range(len(french))], french)
    axes.set_yticks([i + 0.5 for i in range(len(english))], english)
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.set(xlabel="French, read", ylabel="English, predicted")
    figure.colorbar(cells, cax=bar, label="weight")
    figure.suptitle(MAP.replace(", ", ",\n"), fontsize="medium")
    figure.savefig(path, dpi=150)


@torch.no_grad()
def show_translations(model: ref.Transformer, vocabulary: Vocabulary) -> int:
    """Print the greedy translation of every French sentence with its score, and return how many are wrong."""
    source, _ = make_batch(PAIRS, vocabulary)
    ids, scores, _ = ref.greedy_decode(model, source, bos_id=BOS, eos_id=EOS, max_length=MAX_LENGTH)
    width = max(len(french) for french, _ in PAIRS)
    wrong = 0
    for (french, english), sentence, score in zip(PAIRS, ids.tolist(), scores.tolist(), strict=True):
        got, taught = " ".join(vocabulary.read(sentence)), f"{english} {SPECIAL[EOS]}"
        note = "" if got == taught else f"   wrong, taught as: {taught}"
        wrong += got != taught
        click.echo(f"  {french:{width}}  {score:8.4f}  {got}{note}")
    return wrong


@torch.no_grad()
def show_beams(model: ref.Transformer, vocabulary: Vocabulary, source: Tensor) -> None:
    """Print what beam search finds for a source (1, source_seq), best first."""
    ids, scores = ref.beam_search(
        model, source, bos_id=BOS, eos_id=EOS, max_length=MAX_LENGTH, beam_size=BEAM_SIZE, top_beams=TOP_BEAMS
    )  # (1, top_beams, max_length), (1, top_beams)
    for sentence, score in zip(ids[0].tolist(), scores[0].tolist(), strict=True):
        click.echo(f"  {score:8.4f}  {' '.join(vocabulary.read(sentence))}")


@click.command(
    epilog="Exit status: 0 every sentence is translated as taught · 1 one is not · 2 a bad option.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.option("--seed", default=0, help="Of the weights and the dropout.")
@click.option("--epochs", type=click.IntRange(1), default=600, help="Steps of Adam, each on all pairs.")
@click.option("--smoothing", type=click.FloatRange(0, 1), default=0.0, help="Label smoothing; the paper has 0.1.")
@click.option("--sentence", default="je suis un étudiant fatigué", help="French words, to be searched and mapped.")
@click.option("--picture", type=click.Path(path_type=Path), default="translate.png", help="A .png, .svg or .pdf.")
@click.option("--no-picture", is_flag=True, help="Draw no picture.")
def main(seed: int, epochs: int, smoothing: float, sentence: str, picture: Path, *, no_picture: bool) -> None:
    """Train a small Transformer to translate French, decode with it, and show its cross-attention."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has ░
    vocabulary = Vocabulary.of(PAIRS)
    try:
        shown = torch.tensor([vocabulary.ids(sentence)])  # (1, source_seq)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--sentence") from None
    if picture.suffix.lower() not in (".png", ".svg", ".pdf") or not picture.parent.is_dir():
        message = f"{picture} must be a .png, .svg or .pdf in a folder that exists"
        raise click.BadParameter(message, param_hint="--picture")

    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the arrays are small: more threads would wait for each other
    source, target = make_batch(PAIRS, vocabulary)
    model = ref.Transformer(len(vocabulary.words), D_MODEL, HEADS, LAYERS, LAYERS, D_FF, pad_id=PAD, dropout=DROPOUT)
    losses = train(model, source, target, epochs=epochs, smoothing=smoothing)
    click.echo(f"{epochs} epochs on {len(PAIRS)} pairs, loss {losses[0]:.3f} → {losses[-1]:.3f}")

    click.echo("\ngreedy decoding; the score is the sum of the words' log-probabilities")
    wrong = show_translations(model, vocabulary)
    click.echo(f"\nbeam search, {BEAM_SIZE} beams, the best {TOP_BEAMS}: {sentence}")
    show_beams(model, vocabulary, shown)
    click.echo(f"\n{MAP}; a row for each word predicted")
    ids = ref.greedy_decode(model, shown, bos_id=BOS, eos_id=EOS, max_length=MAX_LENGTH).ids  # (1, max_length)
    french, english = vocabulary.read(shown[0].tolist()), vocabulary.read(ids[0].tolist())
    weights = cross_attention(model, shown, ids[:, : len(english)])[0]  # (seq, source_seq)
    click.echo(text_map(weights, french, english) + "\n")
    if not no_picture:
        try:
            save_picture(picture, weights, french, english)
            click.echo(f"picture: {picture}")
        except ModuleNotFoundError:
            click.echo(f"no picture: matplotlib is missing; {install_hint('examples')}", err=True)
    if wrong:
        message = f"{wrong} of {len(PAIRS)} sentences are not translated as taught: train longer, with more --epochs"
        raise click.ClickException(message)
    click.echo(f"all {len(PAIRS)} sentences are translated as taught")


if __name__ == "__main__":
    main()
