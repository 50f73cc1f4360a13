"""Splits text into sentences, and long texts into parts. No text is lost.

One set of rules serves every language, so nobody has to say which language a text is in. On text of
21 languages no other splitter found more of the ends (`benchmarks/sentence_ends.py`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from dragoman.corpus.vocabulary import Vocabulary

MARKS: Final = ".!?…‥"
"""Marks that end a sentence if space follows; in other places they are part of a word or number."""
STOPS: Final = ".…‥"
"""Those of them that do not end a sentence before a small letter."""
WITHOUT_CAPITALS: Final = "\u10d0-\u10ff"
"""Letters, as ranges, that Unicode calls small although no text has capitals of them: Georgian."""
WIDE_STOPS: Final = "．﹒۔"
"""Full stops that need no space after them; they also stand in numbers and after those of lists."""
SURE_MARKS: Final = (
    "\u037e\u0589\u061d\u061e\u061f\u0700\u0701\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965"
    "\u0f0d\u0f0e\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945"
    "\u1aa8\u1aa9\u1aaa\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d\u1b7e\u1c3b\u1c3c\u1c7e\u1c7f"
    "\u203c\u203d\u2047\u2048\u2049\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7"
    "\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\uaaf0\uaaf1\uabeb"
    "\ufe12\ufe15\ufe16\ufe56\ufe57\uff01\uff1f\uff61"
)
"""Marks that end a sentence wherever they stand.

The characters of Unicode's property Sentence_Terminal (PropList.txt) in the first plane, where all
scripts of living languages are; without U+104A, the comma of Burmese, and with the shads of Tibetan
and the question mark of Greek, which Unicode leaves out.
"""
LETTER_MARKS: Final = (
    ("\u0370-\u03ff\u1f00-\u1fff", ";"),
    ("\u0531-\u0587", ":"),
    ("\u1361", "\u1361"),
)
"""Marks after a letter of a script, as ranges: a Greek question and an Armenian full stop, as most
people type them, and the second colon of an Ethiopic full stop. They need space, too."""
CLOSING: Final = "\"'»«”“’‘›‹)]}"
"""What may stand between a mark and the space after it."""
SURE_CLOSING: Final = "»”’›)]}」』）］｝】〉》〕"
"""What belongs to a mark without space after it: nothing that may open the next sentence."""
OPENING: Final = "([{\"'’„“‚‘«»‹›¿¡"
"""What may stand before a word."""
_ABBREVIATIONS: Final = """
dr dra drs Jr prof ing mgr Mag dipl gen Col Maj capt cpt lt sgt adm st ste sto sta Fig figs abb nr
tel pp pag cf resp ph.d suppl ca cca approx aprox incl inkl excl exkl
mr mrs ms messrs rev Hon gov Sen Rep supt mt viz vs eq parag bzw hr hrn fr frl bd bde bspw dgl
einschl entspr evtl ggf ggfs hrsg insb insbes mio mrd sog str vgl zzgl abschn anm aufl chr MM mme
mmes mlle mlles env apr éd réf tél av ex
sr sra sres srta srs sras dña ud uds vd vds profa lic gral cnel tte mons rvdo excmo excma ilmo
ilma exmo exma núm pág págs avda dpto EE ej párr secc séc sig sigg dott avv Arch geom Rag magg
cfr pagg artt onor dhr mevr mw Ir ds jhr bijv blz hfst zgn vnl vlgs
inż abp kard płk ppłk mjr kpt ppor św ul tzw tzn tj np m.in wg rys ust poz rozdz wyd zob godz tys
mln mld im bc mudr judr phdr rndr tzv např popř napr príp mj čl odst ods písm nám tř obr pplk plk
npr usp gđa Ga gdč št inž
bl.a f.eks t.ex dvs pga ang stk jf jfr vedr tlf s.k esim ns ts em vrt ks huom milj nt lk prl mnt
ifj özv pl ún vö ld sz szt ker hrsz piem gs plkv iel lpp pvz žr plg šv vyr tūkst dl dna jud alin
pct lect asist acad univ eż nru paġ m.sh doç yrd sn bkz Cad Sok Mah örn
гр ул бул пл проф доц инж акад ген полк напр т.нар стр чл вж срв св обл изд им просп наб пер корп
оз рис табл гл гг вв ср тыс вул див ім тис κα δρ καθ βλ πρβλ αρ αριθ σελ κεφ παρ τηλ λεωφ αγ δηλ
εκατ δισ εικ डॉ प्रो पं ডা ড د
მაგ იხ მდ სოფ ძვ ახ წმ პროფ აკად დოქ ინგლ ლათ ბერძ რუს გერმ ფრ მლნ მლრდ ათ ტელ საშ სპეც მაქს
მინ გვ ქ
"""
ABBREVIATIONS: Final = tuple(_ABBREVIATIONS.split())
"""Words that end in a full stop within a sentence, also before a capital letter.

Those in small letters count in either case. Those with a capital count only so, or in capitals: in
small letters they are words that end sentences.
"""
LONGEST_ABBREVIATION: Final = 20
LONGEST_SHORT_WORD: Final = 4
"""Letters of a word that may be short for another before a number or a bracket: et al. (2020)."""
BEFORE_NUMBERS: Final = "([{§#№$€£¥₹"
"""What may stand there before the number: art. § 3, max. €5."""
YEARS: Final = "rг"
"""Short for year in Polish, Russian and Bulgarian; after its number it ends sentences: w 2014 r."""
RULES: Final = {
    "marks": MARKS,
    "stops": STOPS,
    "without_capitals": WITHOUT_CAPITALS,
    "wide_stops": WIDE_STOPS,
    "sure_marks": SURE_MARKS,
    "letter_marks": LETTER_MARKS,
    "closing": CLOSING,
    "sure_closing": SURE_CLOSING,
    "opening": OPENING,
    "abbreviations": ABBREVIATIONS,
    "longest_abbreviation": LONGEST_ABBREVIATION,
    "longest_short_word": LONGEST_SHORT_WORD,
    "years": YEARS,
    "before_numbers": BEFORE_NUMBERS,
}
"""All of these, for the page of `formats.web`, which has the same rules."""

_SURE = re.escape(SURE_MARKS + WIDE_STOPS)
_ANY = re.escape(MARKS) + _SURE
_CLOSING = re.escape(CLOSING)
_MARKS = re.escape(MARKS)
# Python before 3.11.5 matches possessive groups wrongly (gh-106052), but not atomic ones.
_SPACE = rf"[{_CLOSING}]*+(?>(?:[^\S\n]»(?=\s))?)\s++"
_LETTER_MARKS = "".join(f"|{mark}(?<=[{of}]{mark}){_SPACE}" for of, mark in LETTER_MARKS)
# Each run of marks is read once, from its start, so hostile text takes linear time. Each
# alternative begins with a set of characters: so Python passes over others quickly.
_END = re.compile(
    rf"[{_MARKS}](?<![{_ANY}][{_MARKS}])[{_MARKS}]*+{_SPACE}{_LETTER_MARKS}"
    rf"|[{_SURE}][{_ANY}]*+(?>(?:\s++[{_SURE}][{_ANY}]*+)*)"  # a Tibetan shad has space inside
    rf"""[{re.escape(SURE_CLOSING)}]*+(?>(?:["'][{_CLOSING}]*+(?=\s|\Z))?)\s*+"""
    r"|\n\s*+"  # a line ends what stands on it
)
_WORD_START = re.compile(rf"[\s{re.escape(OPENING)}]")
_YEAR = re.compile(rf"\d\s[{YEARS}]\Z")
_LIST_NUMBER = re.compile(r"\d{1,3}")
_ROMAN_NUMBER = re.compile(r"[IVX]{2,8}(?!\w)")  # of one letter it may be a word
_SHORT = re.compile(
    r"""[^\W\d_]                       # an initial: J. S. Bach
      | (?:[^\W\d_]\.-?)+[^\W\d_]      # e.g., U.S., J.-C.
      | \d{1,3}                        # an ordinal: am 3. Mai
      | [^\W\d_]+str                   # a street: Bachstr. 5
    """,
    re.VERBOSE,
)
_LISTED = frozenset(ABBREVIATIONS)
_WITHOUT_CAPITALS = re.compile(f"[{WITHOUT_CAPITALS}]")


def is_small(letter: str) -> bool:
    """Whether a character is a small letter of a script that has capitals."""
    return letter.islower() and _WITHOUT_CAPITALS.match(letter) is None


def split_sentences(text: str) -> Iterator[tuple[str, str]]:
    """(sentence, the space after it), in order; a sentence may be empty at the start."""
    start = 0
    for match in _END.finditer(text):
        marks = match[0].rstrip()
        if marks and not _ends_sentence(text, start, match.start(), match.end(), marks):
            continue
        sentence = text[start : match.start() + len(marks)].rstrip()
        yield sentence, text[start + len(sentence) : match.end()]
        start = match.end()
    if start < len(text):
        sentence = text[start:].rstrip()
        yield sentence, text[start + len(sentence) :]


def _ends_sentence(text: str, start: int, mark: int, end: int, marks: str) -> bool:
    """Whether marks with the space after them end a sentence.

    They do at the end of a line. Inside it, a full stop or an ellipsis does not before a small
    letter, nor do other marks if a quotation or a bracket closes with them. A full stop alone does
    not after an abbreviation; before a number (5, IV, § 5) or a bracket any short word may be one.
    """
    space = text[mark + len(marks) : end]
    if "\n" in space:
        return True
    following = text[end : end + 1]
    if marks[0] in WIDE_STOPS:
        if following.isdecimal() and not space:
            return False
    elif marks[0] not in MARKS:
        return True
    elif is_small(following) and (marks[0] in STOPS or marks[-1] not in MARKS):
        return False
    if len(marks) > 1 or marks not in "." + WIDE_STOPS:
        return True
    before = text[max(start, mark - LONGEST_ABBREVIATION) : mark]
    word = _WORD_START.split(before)[-1]
    if marks in WIDE_STOPS:
        return _LIST_NUMBER.fullmatch(word) is None
    is_number = following.isdecimal() or _ROMAN_NUMBER.match(text, end) is not None
    if _is_short(word) and (is_number or (following and following in BEFORE_NUMBERS)):
        return False
    if following.isupper() and _YEAR.search(before):
        return True
    return not _is_abbreviation(word)


def _is_short(word: str) -> bool:
    """Whether the last part of a word may be short for another; its vowel signs do not count."""
    last = word.rpartition("-")[2]
    letters = "".join(one for one in last if not unicodedata.category(one).startswith("M"))
    return letters.isalpha() and len(letters) <= LONGEST_SHORT_WORD


def _is_abbreviation(word: str) -> bool:
    if _SHORT.fullmatch(word):
        return True
    word = word.rpartition("-")[2]
    capital = word.capitalize() if word.isupper() else word
    return not _LISTED.isdisjoint((word, capital, word.lower()))


def cut_into_chunks(text: str, subword: Vocabulary, *, max_pieces: int) -> list[list[int]]:
    """Ids of the parts of a normalised text, each at most `max_pieces` long and none empty.

    The text is cut between sentences, a sentence that is too long between words, and a word that is
    too long between pieces. Parts that fit together stay together. Each part has the whole text's
    prefix.
    """
    prefix, text = subword.prefix(text)
    max_pieces = max(1, max_pieces - len(prefix))
    (ids,) = subword.encode_plain([text])
    if len(ids) <= max_pieces:
        return [prefix + ids] if ids else []
    chunks: list[list[int]] = [[]]
    sentences = [sentence for sentence, _ in split_sentences(text)]
    for sentence, sentence_ids in zip(sentences, subword.encode_plain(sentences), strict=True):
        parts = [sentence_ids]
        if len(sentence_ids) > max_pieces:
            parts = [
                word_ids[start : start + max_pieces]
                for word_ids in subword.encode_plain(sentence.split(" "))
                for start in range(0, len(word_ids), max_pieces)
            ]
        for part in parts:
            if len(chunks[-1]) + len(part) > max_pieces:
                chunks.append([])
            chunks[-1] += part
    return [prefix + chunk for chunk in chunks if chunk]
