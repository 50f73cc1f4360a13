from __future__ import annotations

import gzip
import lzma
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import zstandard

from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles
from dragoman.corpus.filters import FilterConfig
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.subword import Subword
from dragoman.telemetry.events import EventWriter, read_events
from parallel_text import sentences, small_corpus, write_lines, write_pairs
from real_text import write_real_text
from rejected_pairs import read_rejected


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, manifest apart: it holds times of the source files."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def texts_of(directory: Path, split: str) -> list[tuple[str, str]]:
    """The decoded pairs of a split."""
    shards = TokenShards(directory / split)
    sides = []
    for side, rows in (("source", shards.source), ("target", shards.target)):
        subword = Subword.load(directory / f"{side}.model")
        sides.append(subword.decode([rows(i).tolist() for i in range(shards.num_pairs)]))
    return list(zip(*sides, strict=True))


def test_every_pair_is_in_one_split_or_rejected(tmp_path: Path) -> None:
    pairs = sentences(500)
    pairs[0][:3] = ["", "same same", pairs[0][9]]
    pairs[1][:3] = ["leer", "same same", pairs[1][9]]
    config = small_corpus(tmp_path, train=(write_pairs(tmp_path, "train", pairs),))
    manifest = prepare(config, tmp_path / "out", workers=1)
    counted = {split: texts_of(tmp_path / "out", split) for split in ("train", "valid", "test")}
    rejected = read_rejected(tmp_path / "out", "train")
    kept = [pair for split in counted.values() for pair in split]
    dropped = [(pair.source, pair.target) for pair in rejected if pair.filter != "held_out"]
    assert sorted(kept + dropped) == sorted(zip(*pairs, strict=True))
    assert {split: facts.pairs for split, facts in manifest.splits.items()} == {
        split: len(texts) for split, texts in counted.items()
    }
    assert manifest.train.dropped == {"empty": 1, "identical": 1, "duplicate": 1, "held_out": 20}
    assert {pair.filter for pair in rejected[-20:]} == {"held_out"}
    assert [pair[:4] for pair in rejected[:3]] == [
        ("empty", 1, "train.en", 1),
        ("identical", 1, "train.en", 2),
        ("duplicate", 1, "train.en", 10),
    ]


def test_every_split_has_lengths_that_fit_its_rows(tmp_path: Path) -> None:
    prepare(small_corpus(tmp_path), tmp_path / "out", workers=1)
    for split in ("train", "valid", "test"):
        shards = TokenShards(tmp_path / "out" / split)
        for rows, lengths in (
            (shards.source, shards.source_lengths),
            (shards.target, shards.target_lengths),
        ):
            assert lengths.dtype == np.int32
            assert lengths.tolist() == [len(rows(i)) for i in range(shards.num_pairs)]


def test_training_text_is_shuffled_and_the_pairs_stay_together(tmp_path: Path) -> None:
    config = small_corpus(tmp_path)
    prepare(config, tmp_path / "out", workers=1)
    sources, targets = sentences(600)
    place = {pair: number for number, pair in enumerate(zip(sources, targets, strict=True))}
    order = [place[pair] for pair in texts_of(tmp_path / "out", "train")]
    assert len(set(order)) == len(order)
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.2


def test_the_seed_sets_the_order_and_the_held_out_pairs(tmp_path: Path) -> None:
    digests = {
        prepare(small_corpus(tmp_path, seed=seed), tmp_path / f"out{name}", workers=1).digest
        for name, seed in enumerate((1, 1, 2))
    }
    assert len(digests) == 2


@pytest.mark.system
def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    write_real_text(tmp_path, "train")
    write_real_text(tmp_path, "valid")
    config = CorpusConfig(
        folder=str(tmp_path),
        train=(TextFiles(source="train.en", target="train.de"),),
        valid=(TextFiles(source="valid.en", target="valid.de"),),
        test_pairs=100,
        subword=SubwordConfig(vocab_size=2000),
    )
    manifests = [prepare(config, tmp_path / str(n), workers=n) for n in (1, 2)]
    assert manifests[0] == manifests[1]
    assert tree(tmp_path / "1") == tree(tmp_path / "2")


@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_pairs_of_too_many_pieces(tmp_path: Path, too_long: str) -> None:
    pairs = sentences(300)
    pairs[0][7] = " ".join(pairs[0][:5])
    config = small_corpus(
        tmp_path,
        train=(write_pairs(tmp_path, "train", pairs),),
        max_pieces=60,
        too_long=too_long,
        filters=FilterConfig(max_length_ratio=100),
        valid_pairs=0,
        test_pairs=0,
    )
    facts = prepare(config, tmp_path / "out", workers=1).train
    lengths = TokenShards(tmp_path / "out/train").source_lengths
    assert lengths.max() <= 60
    if too_long == "drop":
        assert (facts.pairs, facts.truncated) == (299, 0)
        [rejected] = read_rejected(tmp_path / "out", "train")
        assert rejected[0] == "too_many_pieces"
        assert rejected.score > 60
        assert (rejected.line, rejected.source) == (8, pairs[0][7])
    else:
        assert (facts.pairs, facts.truncated, facts.dropped) == (300, 1, {})
        assert facts.truncated_share == round(1 / 300, 6)


def test_training_pairs_that_share_a_side_with_dev_or_test_are_dropped(tmp_path: Path) -> None:
    sources, targets = sentences(200)
    dev = (sources[:5], [f"anders {number}" for number in range(5)])
    test = ([f"other {number}" for number in range(5)], targets[5:10])
    config = small_corpus(
        tmp_path,
        train=(write_pairs(tmp_path, "train", (sources, targets)),),
        valid=(write_pairs(tmp_path, "dev", dev),),
        test=(write_pairs(tmp_path, "test", test),),
    )
    facts = prepare(config, tmp_path / "out", workers=1).train
    assert facts.dropped == {"overlap": 10}
    kept = texts_of(tmp_path / "out", "train")
    assert not {source for source, _ in kept} & set(dev[0])
    assert not {target for _, target in kept} & set(test[1])
    keeping = config.model_copy(update={"filters": FilterConfig(drop_overlap=False)})
    assert prepare(keeping, tmp_path / "kept", workers=1).train.pairs == 200


def test_dev_and_test_keep_their_order_and_text(tmp_path: Path) -> None:
    dev = sentences(30, seed=5)
    dev[0][3] = f"  {dev[0][3]}\u00a0\r"
    config = small_corpus(tmp_path, valid=(write_pairs(tmp_path, "dev", dev),), lowercase=True)
    prepare(config, tmp_path / "out", workers=1)
    sources = [normalize(line, lowercase=True) for line in dev[0]]
    assert (tmp_path / "out/valid/source.txt").read_text().splitlines() == sources
    assert (tmp_path / "out/valid/target.txt").read_text().splitlines() == dev[1]
    assert [source for source, _ in texts_of(tmp_path / "out", "valid")] == sources


def test_lowercase_is_applied_to_all_text(tmp_path: Path) -> None:
    sources, targets = sentences(300)
    upper = ([text.upper() for text in sources], [text.title() for text in targets])
    config = small_corpus(tmp_path, train=(write_pairs(tmp_path, "upper", upper),), lowercase=True)
    plain = small_corpus(tmp_path, train=(write_pairs(tmp_path, "t", (sources, targets)),))
    digests = [
        prepare(each, tmp_path / f"out{number}", workers=1).digest
        for number, each in enumerate((config, plain))
    ]
    assert digests[0] == digests[1]


def test_every_form_of_text_gives_the_same_corpus(tmp_path: Path) -> None:
    sources, targets = sentences(400)
    halves = [(sources[:150], targets[:150]), (sources[150:], targets[150:])]
    plain = tuple(write_pairs(tmp_path, f"part{n}", half) for n, half in enumerate(halves))
    for pack, suffix in ((gzip.compress, "gz"), (lzma.compress, "xz"), (zstandard.compress, "zst")):
        for name in ("part0.en", "part0.de"):
            packed = pack((tmp_path / name).read_bytes())
            (tmp_path / f"{name}.{suffix}").write_bytes(packed)
    lines = [f"{source}\t{target}" for source, target in zip(*halves[1], strict=True)]
    tsv = write_lines(tmp_path / "part1.tsv", lines)
    forms = [
        plain,
        (TextFiles(source="part0.en.gz", target="part0.de.xz"), TextFiles(tsv=tsv.name)),
        (TextFiles(source="part0.en.zst", target="part0.de"), TextFiles(tsv=str(tsv))),
    ]
    manifests = [
        prepare(small_corpus(tmp_path, train=form), tmp_path / f"out{number}", workers=1)
        for number, form in enumerate(forms)
    ]
    assert len({manifest.digest for manifest in manifests}) == 1
    assert {manifest.train.pairs_in for manifest in manifests} == {400}


def test_a_named_corpus_is_fetched_into_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(entry_id: str, directory: Path, **languages: str) -> TextFiles:
        assert languages == {"source_language": "en", "target_language": "de"}
        (directory / entry_id).mkdir(parents=True, exist_ok=True)
        names = write_pairs(directory / entry_id, "text", sentences(300))
        return TextFiles(
            source=str(directory / entry_id / names.source),
            target=str(directory / entry_id / names.target),
        )

    monkeypatch.setattr("dragoman.corpus.sources.fetch", fetch)
    config = small_corpus(tmp_path, train=(TextFiles(mtdata="Some-corpus-1-deu-eng"),))
    manifest = prepare(config, tmp_path / "out", workers=1)
    assert (tmp_path / "out/downloads/Some-corpus-1-deu-eng/text.en").exists()
    names = [source.name for source in manifest.sources]
    assert names == [f"Some-corpus-1-deu-eng/text.{language}" for language in ("en", "de")]
    assert prepare(config, tmp_path / "out", workers=1) == manifest


@pytest.mark.parametrize("joint", [True, False])
def test_subword_models_are_joint_or_separate(tmp_path: Path, joint: bool) -> None:
    config = small_corpus(tmp_path, subword=SubwordConfig(vocab_size=100, joint=joint))
    manifest = prepare(config, tmp_path / "out", workers=1)
    models = [(tmp_path / f"out/{side}.model").read_bytes() for side in ("source", "target")]
    assert (models[0] == models[1]) == joint
    texts = [set((tmp_path / f"train.{name}").read_text().splitlines()) for name in ("en", "de")]
    for source, target in texts_of(tmp_path / "out", "train"):
        assert source in texts[0]
        assert target in texts[1]
    assert (manifest.source_vocab_size, manifest.target_vocab_size) == (100, 100)


def test_a_large_vocabulary_takes_four_bytes_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.corpus.shards._SHORT_IDS", 100)
    prepare(small_corpus(tmp_path), tmp_path / "out", workers=1)
    assert TokenShards(tmp_path / "out/train").source(0).dtype == np.uint32
    assert len(texts_of(tmp_path / "out", "train")) == 580


def test_the_manifest_records_the_text_that_went_in_and_came_out(tmp_path: Path) -> None:
    config = small_corpus(tmp_path)
    manifest = prepare(config, tmp_path / "out", workers=1)
    assert manifest == Manifest.load(tmp_path / "out")
    source = manifest.sources[0]
    assert (source.split, source.name, source.lines) == ("train", "train.en", 600)
    size = (tmp_path / "train.en").stat().st_size
    assert (source.size_bytes, source.text.num_bytes) == (size, size)
    assert (source.text.mb, source.text.mib) == (round(size / 1e6, 3), round(size / 2**20, 3))
    stages = [(stage.stage, stage.pairs_in, stage.pairs_out) for stage in manifest.train.stages]
    assert stages == [("clean", 600, 600), ("encode", 600, 580)]
    shards = TokenShards(tmp_path / "out/train")
    assert manifest.train.source_pieces == shards.source_lengths.sum()
    assert manifest.train.target_pieces == shards.target_lengths.sum()
    kept = texts_of(tmp_path / "out", "train")
    num_bytes = sum(len(source.encode()) + 1 for source, _ in kept)
    assert manifest.train.stages[-1].source_text.num_bytes == num_bytes


def test_stages_are_events_and_progress_is_reported(tmp_path: Path) -> None:
    reported: list[tuple[str, int, int | None]] = []
    with EventWriter(tmp_path / "events") as events:
        prepare(
            small_corpus(tmp_path),
            tmp_path / "out",
            workers=1,
            events=events,
            progress=lambda *state: reported.append(state),
        )
    found = [event for event in read_events(events.path) if event.kind == "corpus_stage"]
    stages = [(event.payload["split"], event.payload["stage"]) for event in found]
    assert stages == [("train", "clean"), ("train", "encode")]
    assert reported == [("clean", 600, None), ("learn", 0, None), ("encode", 600, 600)]


def test_a_second_run_does_nothing(tmp_path: Path) -> None:
    config = small_corpus(tmp_path)
    first = prepare(config, tmp_path / "out", workers=1)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    os.utime(tmp_path / "train.en")  # another time, the same text
    assert prepare(config, tmp_path / "out", workers=1) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == times


def test_files_that_were_moved_as_they_are_need_no_second_run(tmp_path: Path) -> None:
    config = small_corpus(tmp_path)
    first = prepare(config, tmp_path / "out", workers=1)
    (tmp_path / "moved").mkdir()
    for name in ("train.en", "train.de"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    moved = config.model_copy(update={"folder": str(tmp_path / "moved")})
    assert prepare(moved, tmp_path / "out", workers=1) == first


@pytest.mark.parametrize("change", ["text", "setting", "shard"])
def test_a_changed_corpus_is_prepared_again(tmp_path: Path, change: str) -> None:
    config = small_corpus(tmp_path)
    first = prepare(config, tmp_path / "out", workers=1)
    if change == "text":
        text = (tmp_path / "train.en").read_text()
        (tmp_path / "train.en").write_text(text.replace("ba", "bi", 1))
    elif change == "setting":
        config = config.model_copy(update={"seed": 7})
    else:
        (tmp_path / "out/valid/source_ids.npy").unlink()
    second = prepare(config, tmp_path / "out", workers=1)
    assert (second.digest == first.digest) == (change == "shard")
    assert Manifest.load(tmp_path / "out") == second
    assert prepare(config, tmp_path / "fresh", workers=1).digest == second.digest
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")


@pytest.mark.parametrize("near", [False, True])
def test_near_duplicates_of_a_given_test_set_leave_the_training_text(
    near: bool, tmp_path: Path
) -> None:
    words = ["".join(letters) for letters in product("abcdefghij", repeat=3)][:300]
    sources = [f"The {word} sleeps." for word in words]
    targets = [f"Die {word} schläft." for word in words]
    held = [source.upper().replace(".", " !") for source in sources[:50]], targets[250:]
    config = small_corpus(
        tmp_path,
        train=(write_pairs(tmp_path, "train", (sources, targets)),),
        valid_pairs=0,
        test=(write_pairs(tmp_path, "test", ([*held[0]], [f"{text} " for text in held[1]])),),
        filters=FilterConfig(drop_near_duplicates=near),
    )
    manifest = prepare(config, tmp_path / "prepared", workers=1)
    # Equal targets are found in any case; sources in capitals only if near ones count.
    assert manifest.train.dropped == {"overlap": 100 if near else 50}
    assert manifest.train.pairs == 200 + 50 * (not near)


def test_near_duplicates_are_kept_once_within_a_file_and_across_files(tmp_path: Path) -> None:
    words = ["".join(letters) for letters in product("abcdefghij", repeat=3)][:300]
    sources = [f"The {word} sleeps." for word in words]
    targets = [f"Die {word} schläft." for word in words]
    shouted = [source.upper().replace(".", " !") for source in sources]
    quoted = [f"„{target.replace(' ', '  ')}“" for target in targets]
    numbers = range(1, 41)
    chapters = [f"Chapter {number}" for number in numbers], [f"Kapitel {n}" for n in numbers]
    # Another target, no letters at all, and vowels that are marks: none is like another.
    others = ["Chapter 1", "1 2", "1 3", "का", "की"], ["Kapitel 1 von", "1 2", "1 3", "ka", "ka"]
    files = (
        write_pairs(tmp_path, "first", (sources + chapters[0], targets + chapters[1])),
        write_pairs(tmp_path, "second", (shouted + others[0], quoted + others[1])),
    )
    config = small_corpus(
        tmp_path,
        train=files,
        valid_pairs=0,
        test_pairs=0,
        filters=FilterConfig(drop_near_duplicates=True, drop_identical=False),
    )
    manifest = prepare(config, tmp_path / "prepared", workers=1)
    assert manifest.train.dropped == {"near_duplicate": 300 + 39}
    assert manifest.train.pairs == 300 + 1 + 5
    rejected = read_rejected(tmp_path / "prepared", "train")
    assert {pair.source for pair in rejected if pair.file == "second.en"} == set(shouted)


def test_a_pair_that_two_files_have_is_kept_once(tmp_path: Path) -> None:
    """Each file is a block of its own, so only the whole corpus shows such duplicates."""
    pairs = sentences(300)
    files = tuple(write_pairs(tmp_path, name, pairs) for name in ("first", "second"))
    config = small_corpus(tmp_path, train=files, valid_pairs=0, test_pairs=0)
    manifest = prepare(config, tmp_path / "once", workers=1)
    assert manifest.train.pairs == 300
    assert manifest.train.dropped == {"duplicate": 300}
    rejected = read_rejected(tmp_path / "once", "train")
    whys = {(pair.filter, pair.score, pair.file) for pair in rejected}
    assert whys == {("duplicate", 1.0, "second.en")}
    assert sorted(pair.line for pair in rejected) == list(range(1, 301))
    kept = FilterConfig(drop_duplicates=False)
    manifest = prepare(config.model_copy(update={"filters": kept}), tmp_path / "twice", workers=1)
    assert manifest.train.pairs == 600
