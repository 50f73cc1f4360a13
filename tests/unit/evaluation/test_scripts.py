"""Scores of scripts that put no spaces between words.

The sentences are article 1 of the Universal Declaration of Human Rights, which is free to use.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from dragoman.evaluation.metrics import bleu, bleu_of
from dragoman.telemetry.events import read_events

SENTENCES = {
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "zh-TW": "人人生而自由,在尊嚴和權利上一律平等。他們賦有理性和良心,並應以兄弟關係的精神相對待。",
    "yue": "人人生出嚟就係自由嘅,喺尊嚴同權利上一律平等。佢哋具有理性同良心。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "th": "มนุษย์ทั้งปวงเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "lo": "ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ,ສິດທິ,ເສລີພາບແລະຄວາມສະເໝີພາບເທົ່າທຽມກັນ.",
    "km": "មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងភាពស្មើៗគ្នាក្នុងសិទ្ធិនិងសេចក្ដីថ្លៃថ្នូរ។",
    "my": "လူတိုင်းသည်တူညီလွတ်လပ်သောဂုဏ်သိက္ခာဖြင့်လည်းကောင်း၊တူညီလွတ်လပ်သောအခွင့်အရေးများဖြင့်လည်းကောင်း။",
    "mya_Mymr": "ထိုသူတို့၌ပိုင်းခြားဝေဖန်တတ်သောဉာဏ်နှင့်ကျင့်ဝတ်သိတတ်သော။",
    "bo": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང་ཐོབ་ཐང་གི་རང་དབང་འདྲ་མཉམ་དུ་ཡོད་ལ།",
    "dz": "འགྲོ་བ་མི་རིགས་ག་ར་དབང་ཆ་འདྲ་མཏམ་འབད་སྒྱེཝ་ལས་ག་ར་གིས་གཅིག་གིས་གཅིག་ལུ་སྤུན་ཆའི་དམ་ཚིག་བསྟན་དགོས།",
    "ii": "ꊿꂷꃅꄿꐨꐥ,ꌅꅍꂘꀕꅉꀋꐚꐥꌐ。ꊿꊇꉪꍆꌋꆀꁨꉌꑌꐥ,ꄷꀋꁨꂛꊨꅫꃀꃅꐥꄡꑟ。",
}  # fmt: skip


@pytest.mark.parametrize("language", SENTENCES)
def test_a_nearly_right_translation_scores_more_than_a_worse_one(language: str) -> None:
    right = SENTENCES[language]
    middle = len(right) // 2
    nearly = right[:middle] + right[middle + 1 :]
    half = right[:middle]
    other = SENTENCES["th" if language != "th" else "km"]
    found = [bleu([one], [right], language=language).value for one in (nearly, half, other)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 80
    assert 5 < found[1] < 60
    assert found[2] < 20


def test_13a_saw_nothing_there() -> None:
    """Why: for 13a a sentence of these is one word, so that one wrong letter makes it 0."""
    for language in ("km", "my", "dz", "th"):
        right = SENTENCES[language]
        assert bleu([right[:20] + right[21:]], [right], language="de").value < 1


@pytest.mark.parametrize(
    ("tokenizer", "languages"),
    [
        ("zh", "zh zh-TW cmn_Hans zho_Hant yue wuu lzh nan hak zh-CN zh-SG"),
        ("char", "th tha_Thai lo lao_Laoo km khm_Khmr my mya_Mymr shn mnw ksw bo bod_Tibt dz"),
        ("char", "nod khb tdd blt ii ryu jv-Java ban-Bali bug-Bugi ja-Kana"),
        ("13a", "de ru el he ar hi ka hy am ta jv ban nan-Latn ja-Latn km-Latn x-mine french"),
    ],
)
def test_the_script_chooses_the_tokenizer(tokenizer: str, languages: str) -> None:
    found = {code: bleu_of(code).tokenizer_signature for code in languages.split()}
    assert found == dict.fromkeys(found, tokenizer)


RECIPE = """
name = "khmer"
[corpus]
source_language = "en"
target_language = "km"
train = [{source = "text.en", target = "text.km"}]
valid_pairs = 10
[corpus.subword]
vocab_size = 150
[model]
d_model = 16
d_ffn = 32
num_heads = 2
encoder_layers = 1
decoder_layers = 1
[train]
max_steps = 2
validate_every_steps = 1
stop_metric = "bleu"
[evaluate]
bootstrap_samples = 0
[search]
beam_size = 1
max_length_extra = 9
"""


@pytest.mark.system
def test_training_stops_by_a_score_that_sees_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    khmer = SENTENCES["km"]
    parts = [(start, khmer[start : start + 12]) for start in range(len(khmer) - 12)] * 4
    Path("text.en").write_text("".join(f"part {start} of it\n" for start, _ in parts))
    Path("text.km").write_text("".join(f"{part}\n" for _, part in parts))
    Path("khmer.toml").write_text(RECIPE)
    run = dragoman.train("khmer.toml")
    seen = [
        event.payload
        for event in read_events(run.events / "log.jsonl")
        if event.kind == "validated"
    ]
    assert seen
    assert all("tok:char" in one["bleu_signature"] for one in seen)
