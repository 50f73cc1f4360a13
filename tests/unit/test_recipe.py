"""Recipes: what wins, what is refused and in which words, what is written back."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman.base.errors import ConfigError
from dragoman.recipe.recipe import Recipe, digest, dump_toml, line_of, list_recipes, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import Records

MINIMAL = """\
# A recipe of my own.
[corpus]
train = [{source = "a.en", target = "a.de"}]
valid_pairs = 10
"""
PAIR = ("corpus.source_language=en", "corpus.target_language=de")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL)
    return path


def refusal(path: Path, text: str = "", overrides: tuple[str, ...] = ()) -> str:
    """The one line that a recipe of these lines is refused with, its folder left out."""
    path.write_text(MINIMAL + text)
    with pytest.raises(ConfigError) as error:
        load_recipe(path, overrides)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(str(path.parent) + "/", "")


def test_overrides_win_over_the_file_and_the_file_over_defaults(mine: Path) -> None:
    mine.write_text(MINIMAL + "[schedule]\nwarmup_steps = 7\npeak_learning_rate = 0.5\n")
    recipe = load_recipe(mine, ["schedule.warmup_steps=400", "schedule.kind=cosine"])
    assert recipe.schedule.warmup_steps == 400
    assert recipe.schedule.kind == "cosine"
    assert recipe.schedule.peak_learning_rate == 0.5
    assert recipe.schedule.final_ratio == 0.0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.start_ids=[40000]", "model.start_ids has 40000, and the target's vocabulary"),
        ("model.start_ids=[2,5]", "model.start_ids has several ids"),
    ],
)
def test_a_start_of_translations_that_cannot_be_is_refused(
    mine: Path, override: str, words: str
) -> None:
    assert words in refusal(mine, overrides=(override,))


def test_an_override_without_a_value_restores_the_default(mine: Path) -> None:
    mine.write_text(MINIMAL + "[data]\nbatch_sentences = 64\n")
    assert load_recipe(mine).data.batch_tokens is None
    recipe = load_recipe(mine, ["data.batch_sentences=", "data.batch_tokens=100"])
    assert (recipe.data.batch_sentences, recipe.data.batch_tokens) == (None, 100)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("name=quick", "quick"),
        ('name="quick"', "quick"),
        ("name = quick", "quick"),
        ('name="2024"', "2024"),
    ],
)
def test_strings_need_no_quotes(mine: Path, override: str, value: str) -> None:
    assert load_recipe(mine, [override]).name == value


def test_a_byte_order_mark_is_passed_over(mine: Path) -> None:
    plain = load_recipe(mine)
    mine.write_text(MINIMAL, encoding="utf-8-sig")
    assert load_recipe(mine) == plain


def test_a_folder_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "mine.toml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match="byte 0xe9 in its name, which is not UTF-8; rename it"):
        load_recipe(folder / "mine.toml")


def test_a_folder_whose_name_the_locale_lacks_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "für"
    folder.mkdir()
    (folder / "mine.toml").write_text(MINIMAL)
    # Without site: in this locale it cannot read where an editable install lies, if the locale
    # lacks a character of that path.
    package = str(Path(dragoman.__file__).parents[1])
    packages = [path for path in sys.path if path.endswith("site-packages")]
    program = (
        "import sys; count = int(sys.argv[1]); sys.path += sys.argv[2 : 2 + count]; "
        "del sys.argv[1 : 2 + count]; from dragoman.__main__ import main; sys.exit(main())"
    )
    paths = [str(1 + len(packages)), package, *packages]
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            program,
            *paths,
            "run",
            "--dry-run",
            str(folder / "mine.toml"),
        ],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "set LC_ALL=C.UTF-8 or PYTHONUTF8=1" in done.stderr


def test_brackets_without_end_are_refused(mine: Path) -> None:
    assert "nested over 16 deep" in refusal(mine, "[train]\nmax_steps = " + "[" * 5000)


def test_the_name_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my first try.toml"
    path.write_text(MINIMAL)
    assert load_recipe(path).name == "my-first-try"


def test_files_of_the_recipe_lie_beside_it_and_files_of_an_override_where_we_are(
    mine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    recipe = load_recipe(mine)
    assert recipe.corpus.folder == str(tmp_path)
    assert recipe.corpus.train[0].source == "a.en"
    recipe = load_recipe(mine, ['corpus.valid=[{source="b.en", target="b.de"}]'])
    assert recipe.corpus.valid[0].target == str(here / "b.de")
    for form in ("tsv", "tmx", "moses"):
        (entry,) = load_recipe(mine, [f'corpus.train=[{{{form}="c.zip"}}]', *PAIR]).corpus.train
        assert getattr(entry, form) == str(here / "c.zip")
    assert load_recipe(mine, ["corpus.folder=data"]).corpus.folder == str(here / "data")
    for folder, place in (("", here), ('folder="data", ', here / "data")):
        whole = f'corpus={{{folder}train=[{{tsv="a.tsv"}}], valid=[{{tsv="v.tsv"}}]}}'
        recipe = load_recipe(mine, [whole, *PAIR])
        assert (recipe.corpus.folder, recipe.corpus.train[0].tsv) == (str(place), "a.tsv")
    mine.write_text(MINIMAL + 'folder = "texts"\n')
    assert load_recipe(mine).corpus.folder == str(tmp_path / "texts")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[schedule]\nwarmup_step = 4\n",
            ["mine.toml:6:", "schedule.warmup_step;", "warmup_steps"],
        ),
        ("[shedule]\nwarmup_steps = 4\n", ["mine.toml:5:", "unknown key shedule;", "schedule?"]),
        ("[train]\nwarmup_steps = 4\n", ["mine.toml:6:", "it belongs to [schedule]"]),
        ("[train]\nname = 'x'\n", ["mine.toml:6:", "belongs to the top of the file"]),
        ("test = ['a.tsv']\n", ["mine.toml:5:", "write [[corpus.test]] and its keys"]),
        ("test = 'a.tsv'\n", ["mine.toml:5:", "a list of sections; write [[corpus.test]]"]),
        ("[train]\nfreeze = 'encoder'\n", ["mine.toml:6:", 'in brackets: freeze = ["encoder"]']),
        ("[[corpus.test]]\ntsv = 3\n", ["corpus.test[0].tsv = 3", "; give it such a value"]),
        ("[train]\nfoo = 4\n", ["train.foo", "the keys here are max_steps, precision"]),
        ("[schedule]\nkind = 'cosin'\n", ["mine.toml:6:", "schedule.kind", "did you mean cosine?"]),
        ("[train]\nmax_steps = 'many'\n", ["mine.toml:6:", "valid integer", "100000"]),
        ("[train]\nmax_steps = true\n", ["train.max_steps", "valid integer"]),
        ("[train]\nmax_steps = '4000'\n", ["train.max_steps", "valid integer"]),
        ("[train]\nmax_steps = 2024-01-01\n", ["train.max_steps", "valid integer"]),
        ("[model]\ndropout = 1.5\n", ["mine.toml:6:", "model.dropout = 1.5", "less than 1", "0.1"]),
        ("[schedule]\npeak_learning_rate = inf\n", ["peak_learning_rate", "finite"]),
        ("[search]\nbeam_size = 1_000_000_000_000\n", ["search.beam_size", "equal to 1000;"]),
        ("[search]\nlength_penalty_alpha = 1e308\n", ["length_penalty_alpha", "equal to 5;"]),
        ("[search]\nmax_length_ratio = 1e300\n", ["search.max_length_ratio", "equal to 1000;"]),
        ("[search]\nmax_length_extra = 2000000\n", ["max_length_extra", "equal to 1000000;"]),
        ("[model]\nd_model = 500\n", ["mine.toml:6:", "multiple of num_heads"]),
        ("[data]\nbatch_tokens = 1\nbatch_sentences = 1\n", ["mine.toml:5", "exactly one of"]),
        ("[schedule]\nwarmup_steps = 9\nkind = 'wsd'\n", ["mine.toml:7:", "never decays"]),
        ("[distributed]\ndiloco.fragments = 2\ndiloco.every = 5\n", ["mine.toml:7:", "multiple"]),
        ("[corpus.subword]\njoint = false\n", ["mine.toml:", "corpus.subword.joint = true"]),
        ("[[corpus.test]]\ntsv = 'a'\n[[corpus.test]]\ntvs = 'a'\n", ["toml:8", "tsv?"]),
        ("test = [{source = 'a'}]\n", ["mine.toml:5:", "source and target, or one of tsv, tmx"]),
        ("[train]\nmax_steps = \n", ["mine.toml:6:", "not TOML", "key = value"]),
        ("[train]\nprecision = bf16\n", ["mine.toml:6:", "not TOML", "quotes"]),
        ("[train]\nx = [1,\n", ["mine.toml: is not TOML"]),
    ],
)
def test_a_wrong_file_is_refused_with_line_key_and_remedy(
    mine: Path, text: str, words: list[str]
) -> None:
    message = refusal(mine, text)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("schedule.warmup_step=4", ["schedule.warmup_step=4:", "did you mean warmup_steps?"]),
        ("schedule.warmup_steps=-4", ["schedule.warmup_steps=-4:", "greater than or equal"]),
        ("data=3", ["data=3", "a section", "[data]"]),
        ("model.start_ids=2", ["model.start_ids=2:", "in brackets: start_ids = [2]"]),
        ("data.batch_sentences=3", []),
        ("model.num_heads=7", ["model.num_heads=7:", "multiple of num_heads"]),
        ("name.first=4", ["name.first=4:"]),
        ("corpus.train.source=4", ["corpus.train.source=4:", "train is not a section"]),
        ("corpus.train=[{tsv=}]", ["corpus.train=[{tsv=}]:", "not TOML"]),
        ("schedule.warmup_steps", ["section.key=value"]),
        ("=4", ["section.key=value"]),
        ("corpus.train=", ["names no text to train on"]),
        ("corpus.valid_pairs=0", ["neither corpus.valid nor corpus.valid_pairs"]),
        ("train.seed=-1", ["train.seed=-1:", "greater than or equal to 0"]),
        ("corpus.seed=99999999999999999999", ["corpus.seed=", "less than 92233720"]),
    ],
)
def test_a_wrong_override_is_refused_in_its_own_words(
    mine: Path, override: str, words: list[str]
) -> None:
    if not words:
        load_recipe(mine, [override])
        return
    message = refusal(mine, overrides=(override,))
    for word in words:
        assert word in message


def test_the_faulty_one_of_several_overrides_is_named(mine: Path) -> None:
    overrides = ("data.batch_tokens=9", "data.batch_sentences=7", "data.bucket=false")
    message = refusal(mine, overrides=overrides)
    assert message.startswith("data.batch_sentences=7: ")


def test_patience_with_a_score_that_is_never_measured_is_refused(mine: Path) -> None:
    never = ("train.patience=3", "train.stop_metric=bleu", "evaluate.bleu_pairs=0")
    assert "never stops with evaluate.bleu_pairs = 0" in refusal(mine, overrides=never)
    assert load_recipe(mine, never[:2]).train.patience == 3


def test_missing_and_unreadable_recipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean demo"):
        load_recipe("demmo")
    with pytest.raises(ConfigError, match="No such file"):
        load_recipe(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_recipe(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "a"\n# \xe4\n')
    with pytest.raises(ConfigError, match=r"latin.toml:2: the recipe is not UTF-8"):
        load_recipe(tmp_path / "latin.toml")


@pytest.mark.parametrize("name", [recipe.name for recipe in list_recipes()])
def test_the_dump_of_a_shipped_recipe_reads_back_equal(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    text = dump_toml(recipe)
    assert text == dump_toml(recipe)
    (tmp_path / "recipe.toml").write_text(text)
    again = load_recipe(tmp_path / "recipe.toml")
    assert again == recipe
    assert digest(again) == digest(recipe)
    assert set(tomllib.loads(text)) == set(Recipe.model_fields) - {"stages"}


def test_the_digest_is_that_of_the_values_and_not_of_their_spelling(mine: Path) -> None:
    plain = digest(load_recipe(mine))
    mine.write_text(MINIMAL + "# a comment\n[train]\nseed = 1 # the default\n")
    assert digest(load_recipe(mine)) == plain
    assert digest(load_recipe(mine, ["train.seed=2"])) != plain
    assert len(plain) == 64


def test_every_shipped_recipe_has_a_summary_of_its_purpose() -> None:
    recipes = list_recipes()
    assert {recipe.name for recipe in recipes} >= {
        "demo",
        "multi30k-tiny",
        "wmt16-ende-base",
        "wmt16-ende-big",
        "wmt16-ende-reference",
    }
    for recipe in recipes:
        assert 20 < len(recipe.summary) < 100
        assert load_recipe(recipe.name).name == recipe.name


@given(st.integers(0, 3), st.sampled_from(["a", "b-c", '"d e"']))
def test_a_key_is_found_on_its_line(blank: int, key: str) -> None:
    text = "top = 1\n[s]\n" + "\n# x = 1\n" * blank + f"  {key}  = [\n  1,\n]\n[s.t]\n{key} = 2\n"
    bare = key.strip('"')
    assert line_of(text, ("s", bare)) == 3 + 2 * blank
    assert line_of(text, ("s", "t", bare)) == 7 + 2 * blank
    assert line_of(text, ("top",)) == 1
    assert line_of(text, ("absent",)) is None


def test_reading_a_recipe_never_imports_torch() -> None:
    code = "import sys, dragoman.recipe.estimate; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


STAGED = """\
[corpus]
train = [
  {source = "a.en", target = "a.de", name = "news", weight = 1},
  {tsv = "b.tsv", name = "made", weight = 3},
]
valid_pairs = 10
[train]
max_steps = 1000
[schedule]
kind = "constant"
peak_learning_rate = 1e-3
warmup_steps = 0
[[stages]]
steps = 300
[[stages]]
steps = 500
weights = {made = 1}
[[stages]]
weights = {news = 2, made = 1}
learning_rate_factor = 0.1
"""


def test_stages_have_their_own_weights_and_rates(mine: Path) -> None:
    mine.write_text(STAGED)
    recipe = load_recipe(mine)
    assert recipe.stage_starts() == (0, 300, 800)
    assert recipe.weights() == ((1.0, 3.0), (0.0, 1.0), (2.0, 1.0))
    rates = [recipe.learning_rate(step) for step in (0, 299, 300, 799, 800, 999)]
    assert rates == pytest.approx([1e-3] * 4 + [1e-4] * 2)
    again = mine.with_name("again.toml")
    again.write_text(dump_toml(recipe))
    assert load_recipe(again) == recipe


@pytest.mark.parametrize(
    ("old", "new", "drawn"),
    [
        ("", "", [True, True]),
        ("weight = 1}", "weight = 0}", [True, True]),
        ("weight = 1}", 'weight = 0}, {tsv = "c.tsv", weight = 0}', [True, False, True]),
        ("{news = 2, made = 1}", "{made = 1}", [True, True]),  # the first stage draws both
        (
            "[[stages]]\nsteps = 300\n[[stages]]\nsteps = 500\nweights = {made = 1}\n[[stages]]\n"
            "weights = {news = 2, made = 1}",
            "[[stages]]\nweights = {made = 1}",
            [False, True],
        ),
    ],
)
def test_an_entry_is_drawn_if_any_stage_draws_it(
    old: str, new: str, drawn: list[bool], mine: Path
) -> None:
    assert old in STAGED
    mine.write_text(STAGED.replace(old, new))
    directions = load_recipe(mine).drawn_directions()
    assert [one is not None for one in directions] == drawn
    assert {str(one) for one in directions if one} == {"en-de"}


def test_without_stages_and_weights_nothing_is_said_of_them(mine: Path) -> None:
    recipe = load_recipe(mine)
    assert "stages" not in recipe.model_dump()
    assert (recipe.stage_starts(), recipe.weights()) == ((0,), (None,))


@pytest.mark.parametrize(
    ("text", "override", "words"),
    [
        ("steps = 300", "", ["stages[0] has no steps, so stages[1] never begins"]),
        (
            "steps = 300",
            "steps = 1000",
            ["stages[1] would begin at step 1000", "max_steps is 1000"],
        ),
        ("made = 1}\n[[", "made = 0}\n[[", [":15:", "all weights of a stage are 0"]),
        ("{made = 1}", "{made = -1}", ["greater than or equal to 0"]),
        ("{made = 1}", "{made = 1e308}", ["stages[1].weights.made", "less than or equal to 10"]),
        ("steps = 300", "steps = 3\n[[stages]]\n" * 100, ["at most 100 items"]),
        ("{made = 1}", "{}", [":17:", "stages[1].weights"]),
        ("{made = 1}", "{mode = 1}", ["stages[1] has a weight for mode", "are news, made"]),
        ("learning_rate_factor = 0.1", "steps = 100", ["end at step 900, but train.max_steps"]),
        ("learning_rate_factor", "learning_rate_facto", [":20:", "learning_rate_factor?"]),
        ("learning_rate_factor = 0.1", "learning_rate_factor = 0", ["greater than 0"]),
    ],
)
def test_a_stage_that_never_begins_or_draws_nothing_is_refused(
    mine: Path, text: str, override: str, words: list[str]
) -> None:
    assert text in STAGED
    mine.write_text(STAGED.replace(text, override))
    with pytest.raises(ConfigError) as error:
        load_recipe(mine)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_of_a_version_without_length_groups_keeps_its_batches(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(MINIMAL)
    recipe = load_recipe(mine)
    run = RunDirectory(tmp_path)
    written = dump_toml(recipe)
    run.recipe_file.write_text(written)
    assert run.recipe() == recipe
    assert "length_groups = 4\n" in written
    run.recipe_file.write_text(written.replace("length_groups = 4\n", ""))
    assert run.recipe().data.length_groups == 1
    assert Records.read(tmp_path).recipe == run.recipe()
