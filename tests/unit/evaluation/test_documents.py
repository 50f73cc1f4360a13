"""Documents: sentences that a translation lacks or adds are found, whatever the others say."""

from __future__ import annotations

from random import Random

import pytest

import dragoman
from dragoman.evaluation.documents import aligned
from dragoman.evaluation.sentences import split_sentences
from real_text import real_lines

SENTENCES = [
    line
    for line in real_lines("test", "de")
    if line.endswith(".") and len(line) > 30 and len([*split_sentences(line)]) == 1
]
DOCUMENTS = [SENTENCES[start : start + 5] for start in range(0, 400, 5)]
WORDS = [word for line in SENTENCES for word in line.rstrip(".").split() if "." not in word]


def blurred(sentence: str, share: float, chosen: Random) -> str:
    """A bad translation: a share of the words is replaced by others."""
    words = sentence.rstrip(".").split()
    kept = [chosen.choice(WORDS) if chosen.random() < share else word for word in words]
    text = " ".join(kept)
    return f"{text[0].upper()}{text[1:]}."


@pytest.mark.parametrize(("share", "most_wrong"), [(0.0, 0), (0.3, 2), (0.5, 8)])
def test_a_bad_translation_of_every_sentence_omits_hardly_any(
    share: float, most_wrong: int
) -> None:
    chosen = Random(1)
    translations = [
        "\n".join(blurred(one, share, chosen) for one in document) for document in DOCUMENTS
    ]
    found = dragoman.score_documents(translations, ["\n".join(one) for one in DOCUMENTS])
    assert found.sentences == 400
    assert found.omitted <= most_wrong
    assert found.added <= most_wrong
    assert (found.chrf.value == pytest.approx(100.0)) == (share == 0.0)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_most_sentences_that_are_left_out_or_added_are_counted(share: float) -> None:
    chosen = Random(2)
    whole = [[blurred(one, share, chosen) for one in document] for document in DOCUMENTS]
    less = []
    for document in whole:
        left_out = chosen.randrange(5)
        less.append([one for number, one in enumerate(document) if number != left_out])
    references = ["\n".join(document) for document in DOCUMENTS]
    found = dragoman.score_documents(["\n".join(one) for one in less], references)
    assert 0.7 * 80 <= found.omitted <= 82
    assert found.added <= 6
    turned = dragoman.score_documents(references, ["\n".join(one) for one in less])
    assert 0.7 * 80 <= turned.added <= 82
    assert turned.sentences == 320


def test_two_sentences_for_one_are_no_omission() -> None:
    reference = "Wählen Sie eine Datei aus und öffnen Sie sie. Der Bericht wird gedruckt."
    translation = "Wählen Sie eine Datei aus. Und öffnen Sie sie. Der Bericht wird gedruckt."
    assert [(one.source, one.target) for one in aligned(reference, translation)] == [
        (slice(0, 1), slice(0, 2)),
        (slice(1, 2), slice(2, 3)),
    ]
    found = dragoman.score_documents([translation], [reference])
    assert (found.sentences, found.omitted, found.added) == (2, 0, 0)


def test_an_empty_translation_omits_all_and_numbers_must_agree() -> None:
    found = dragoman.score_documents(["", "Ein Satz."], ["Eins. Zwei.", ""])
    assert (found.sentences, found.omitted, found.added) == (2, 2, 1)
    for number in (0, 1):
        with pytest.raises(dragoman.ConfigError, match=f"{number} translations for 0 references"):
            dragoman.score_documents(["a"] * number, [])


@pytest.mark.system
def test_long_documents_are_aligned_though_a_part_is_missing() -> None:
    """Away from the diagonal no path is looked for, but as far as one side is longer."""
    lines = [f"Sentence w{number}x has the word v{number * number}y." for number in range(400)]
    scores = dragoman.score_documents([" ".join(lines[:150] + lines[200:])], [" ".join(lines)])
    assert (scores.sentences, scores.omitted, scores.added) == (400, 50, 0)
    with pytest.raises(dragoman.ConfigError, match="list"):
        dragoman.score_documents("One text.", "One text.")
