"""Whether the tokenizers of published MarianMT models cut text here as in transformers.

    hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de
    python benchmarks/imported_tokens.py --data ../shared/data/multi30k opus-mt-en-de ...

The weights are not read. In each language 1,000 sentences are cut as sources and as targets, and
put together again. Exit code 1 if one differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import transformers

from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.normalize import normalize
from dragoman.importing.config import read_config
from dragoman.importing.tokenizer import Languages, read_tokenizer

LANGUAGES = ("en", "de", "fr", "cs")
SENTENCES = 1000


def main() -> int:
    """Print a line for each folder, side and language."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True, help="with train.en, train.de ...")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    different = 0
    for folder in arguments.folders:
        config = read_config(folder)
        tokenizer = read_tokenizer(folder, config, Languages())
        theirs = transformers.MarianTokenizer.from_pretrained(folder)
        for language in LANGUAGES:
            lines = (arguments.data / f"train.{language}").read_text("utf-8").splitlines()
            texts = lines[:SENTENCES]
            for file, asked in (
                (tokenizer.source, theirs(texts)["input_ids"]),
                (tokenizer.target, theirs(text_target=texts)["input_ids"]),
            ):
                content = file.model_dump_json().encode()
                vocabulary = ImportedVocabulary.parse(content, place=folder)
                ids = vocabulary.encode([normalize(text) for text in texts])
                found = [[*(file.their_ids[one] for one in row), config.special.end] for row in ids]
                written = theirs.batch_decode(asked, skip_special_tokens=True)
                cut = sum(map(list.__eq__, found, asked))
                joined = sum(map(str.__eq__, vocabulary.decode(ids), written))
                print(
                    f"{folder.name} {file.side} {language}: {cut} cut, {joined} put together alike "
                    f"of {len(texts)}"
                )
                different += 2 * len(texts) - cut - joined
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
