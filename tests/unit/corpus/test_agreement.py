"""Numbers and final punctuation on both sides of a pair."""

from __future__ import annotations

import pytest

from dragoman.corpus.agreement import endings_differ, number_differences


@pytest.mark.parametrize(
    ("source", "target", "differences"),
    [
        ("no number", "keine Zahl", 0),
        ("1,000.50 euros", "1.000,50 Euro", 0),
        ("10,000 of 3 million", "10 000 von 3 Millionen", 0),
        ("10,000", "10\u00a0000", 0),
        ("in 2010 300 people", "2010 waren es 300", 0),
        ("May 1st, 09:05", "am 01. Mai um 9:05", 0),
        ("chapters 1, 2 and 3", "Kapitel 1, 2 und 3", 0),
        ("from 10:30 to 11:45", "10.30 bis 11.45 Uhr", 0),
        ("from 10:30 to 11:45", "de 10 h 30 à 11 h 45", 0),
        ("at 10:30", "um 10.45 Uhr", 2),
        ("at 10:30", "um 30.10 Uhr", 2),
        ("a 3:2 win", "ein Sieg mit 3 zu 2", 0),
        ("a 3:2 win", "ein Sieg mit 2 zu 3", 3),
        ("1,2,3", "1, 2, 3", 0),
        ("1,000.50 euros", "1 000,50 Euro", 0),
        ("1 of 23", "12 von 3", 4),
        ("1.50 euros", "1,5 Euro", 2),
        ("٣:٣٠", "3.30", 0),
        ("version 2.1", "Version 2.2", 2),
        ("two of 5", "2 von 5", 1),
        ("5 and 5", "5", 1),
        ("٣ كتب", "3 books", 0),
        ("x" * 10 + "1" * 6000, "1" * 6000, 0),
    ],
)
def test_numbers(source: str, target: str, differences: int) -> None:
    assert number_differences(source, target) == differences
    assert number_differences(target, source) == differences


@pytest.mark.parametrize(
    ("source", "target", "differ"),
    [
        ("He left.", "Er ging!", False),
        ('He said "yes."', "Er sagte „ja“.", False),
        ("(See page 4.)", "(Siehe Seite 4.)", False),
        ("你去哪里？", "Where are you going?", False),
        ("Πού είναι;", "Where is it?", False),
        ("One thing;", "Eine Sache", False),
        ("File", "Datei", False),
        ("The following:", "Das Folgende.", True),
        ("Is it here?", "Es ist hier.", True),
        ("He left the house.", "Er verließ", True),
        ("", "Er ging.", True),
    ],
)
def test_endings(source: str, target: str, differ: bool) -> None:
    assert endings_differ(source, target) is differ
