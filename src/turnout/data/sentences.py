"""The next character of short English sentences, generated: every speaker has favourite words."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from turnout.core.allowed import Count, Positive
from turnout.core.random import FloatArray, dirichlet, key, uniform
from turnout.core.spelling import spelt
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held, room

LETTERS = " abcdefghijklmnopqrstuvwxyz."
NUMBER = {letter: number for number, letter in enumerate(LETTERS)}
WORDS = (  # one of each stands in a sentence, in this order
    ("the", "a", "my", "our", "every", "that"),
    ("old", "small", "quiet", "green", "patient", "hungry", "clever", "tired"),
    ("doctor", "farmer", "baker", "sailor", "teacher", "cat", "neighbour", "driver"),
    ("sees", "finds", "carries", "paints", "sells", "wants", "repairs", "forgets"),
    ("the", "a", "her", "his", "their", "this"),
    ("bread", "boat", "letter", "house", "garden", "window", "bicycle", "song"),
    ("at night", "in spring", "again", "by the river", "on monday", "without a word", "today", "slowly"),
)


@spelt
def load(
    *,
    speakers: Count = 20,  # who talk
    sentences: Count = 20,  # of each
    window: Count = 12,  # characters that the next one is predicted from
    alpha: Positive = 0.5,  # of the Dirichlet law of a speaker's words: the smaller, the fewer favourites
    test_fraction: Held = 0.2,  # share of a speaker's text, the end of it, for testing
    seed: int = 0,  # of all that is said
) -> Dataset:
    """`[n, window]` tokens, the target being the token that follows; tokens index a space, the 26 letters and a dot.

    Facts: `vocabulary`, `clients` (the speakers' names), `texts` (what each says).
    """
    longest = sum(max(map(len, words)) + 1 for words in WORDS)
    room("sentences", speakers * sentences * longest * window, speakers=speakers, sentences=sentences, window=window)
    texts = [_said(seed, speaker, sentences, alpha) for speaker in range(speakers)]
    coded = [np.array([NUMBER[letter] for letter in " " * window + text]) for text in texts]
    rows = [np.lib.stride_tricks.sliding_window_view(text, window + 1) for text in coded]
    groups = np.repeat(np.arange(speakers), [len(part) for part in rows])
    place = np.concatenate([np.arange(len(part)) / len(part) for part in rows])
    return _parted(np.concatenate(rows), groups, place >= 1 - test_fraction, texts)


def _said(seed: int, speaker: int, sentences: int, alpha: float) -> str:
    """What a speaker says."""
    liked: list[FloatArray] = [
        np.cumsum(dirichlet(key(seed, "sentences words", speaker, place), len(words), alpha))
        for place, words in enumerate(WORDS)
    ]
    luck = uniform(key(seed, "sentences", speaker, np.arange(sentences)), len(WORDS))
    said = []
    for draws in luck.tolist():
        places = (min(int(np.searchsorted(law, draw)), len(law) - 1) for law, draw in zip(liked, draws, strict=True))
        said.append(" ".join(words[place] for words, place in zip(WORDS, places, strict=True)) + ".")
    return " ".join(said)


def _parted(rows: NDArray[np.int64], groups: NDArray[np.int64], test: NDArray[np.bool_], texts: list[str]) -> Dataset:
    """Windows with the character after them last; those of the end of a text are for testing."""
    x, y = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, -1].copy())
    train, held = torch.from_numpy(~test), torch.from_numpy(test)
    facts: dict[str, object] = {
        "vocabulary": LETTERS,
        "clients": [f"speaker {number + 1}" for number in range(len(texts))],
        "texts": texts,
    }
    tests = (x[held], y[held], groups[test]) if test.any() else (None, None, None)
    return Dataset("sentences", x[train], y[train], len(LETTERS), tests[0], tests[1], groups[~test], tests[2], facts)
