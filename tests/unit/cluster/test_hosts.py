"""Hosts: the file, the inline form, and every way to get them wrong."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dragoman.base.errors import CheckpointError, ConfigError, MachineError
from dragoman.cli import main
from dragoman.cluster import hosts as hosts_module
from dragoman.cluster.hosts import (
    HOSTS_FILE,
    Host,
    Hosts,
    load_hosts,
    record_hosts,
    recorded_hosts,
)
from small_run import small_run

GOOD = """\
currency = "EUR"

[defaults]
user = "ubuntu"
interface = "ens5"
price_per_hour = 3.06
gpu = "v100"

[[host]]
address = "10.0.0.1"
name = "alpha"
gpus = 2

[[host]]
address = "10.0.0.2"
gpus = 1
user = "root"
port = 2222
price_per_hour = 1.5
"""


def refusal(tmp_path: Path, text: str) -> str:
    file = tmp_path / "hosts.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_hosts(str(file))
    message = str(error.value)
    assert "\n" not in message
    assert error.value.remedy
    return message.replace(f"{tmp_path}/", "")


def test_a_file_with_uneven_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(GOOD)
    hosts = load_hosts(str(file))
    assert hosts.ranks_per_host == (2, 1)
    assert [host.name for host in hosts.host] == ["alpha", "10.0.0.2"]
    assert [host.user for host in hosts.host] == ["ubuntu", "root"]
    assert [host.port for host in hosts.host] == [None, 2222]
    assert {host.interface for host in hosts.host} == {"ens5"}
    assert hosts.price_per_hour == pytest.approx(4.56)
    assert hosts.currency == "EUR"


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(GOOD, encoding="utf-8-sig")
    assert load_hosts(str(file)).ranks_per_host == (2, 1)


def test_the_example_of_the_docstring_is_read(tmp_path: Path) -> None:
    lines = (hosts_module.__doc__ or "").splitlines()
    example = "\n".join(line[4:] for line in lines if line.startswith("    "))
    file = tmp_path / "hosts.toml"
    file.write_text(example)
    assert load_hosts(str(file)).ranks_per_host == (2, 1)


def test_ranks_on_processors(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('[[host]]\naddress = "a"\nslots = 3\n')
    assert load_hosts(str(file)).ranks_per_host == (3,)
    assert load_hosts(str(file)).price_per_hour is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:2,10.0.0.2:1", [("10.0.0.1", 2, None), ("10.0.0.2", 1, None)]),
        ("alpha, beta:4", [("alpha", 1, None), ("beta", 4, None)]),
        ("ubuntu@alpha:2", [("alpha", 2, "ubuntu")]),
    ],
)
def test_the_inline_form(text: str, expected: list[tuple[str, int, str | None]]) -> None:
    found = [(host.address, host.gpus, host.user) for host in load_hosts(text).host]
    assert found == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not a host"),
        ("10.0.0.1:2,", "'' is not a host"),
        ("10.0.0.1:two", "'10.0.0.1:two' is not a host"),
        ("10.0.0.1:0", "has 0 GPUs"),
        ("10.0.0.1:2,10.0.0.1:1", "address 10.0.0.1 occurs twice, in entries 1 and 2; give"),
        ("-oProxyCommand=date:1", "is not a host"),
        ("a@-oProxyCommand=date", "is not a host"),
        ("a b", "is not a host"),
        ("a;date", "is not a host"),
        ("uü@a", "'uü@a' is not a host"),
        ("[fe80::1]:2", "is not a host"),
        ("a" * 300, "is not a host"),
        ("alpha,Alpha", "address Alpha occurs twice"),
        ("ann@alpha:2,b:1,bob@alpha:1", "address alpha occurs twice, in entries 1 and 3; give"),
    ],
)
def test_inline_forms_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_hosts(text)
    assert words in str(error.value)
    assert error.value.place == f"hosts {text}"
    assert error.value.remedy


def test_more_hosts_than_the_name_of_a_file_is_long() -> None:
    text = ",".join(f"10.0.0.{number}:2" for number in range(1, 65))
    assert load_hosts(text).ranks_per_host == (2,) * 64


def test_a_long_name_is_its_host_s_own(tmp_path: Path) -> None:
    address = "a" * 200
    (tmp_path / "hosts.toml").write_text(f'[[host]]\naddress = "{address}"\ngpus = 1\n')
    assert load_hosts(str(tmp_path / "hosts.toml")).host[0].name == address
    assert load_hosts(address).host[0].name == address


def test_a_line_break_on_the_command_line_stays_in_one_line() -> None:
    with pytest.raises(ConfigError) as error:
        load_hosts("a\nb")
    assert str(error.value).startswith("hosts 'a\\nb': 'a\\nb' is not a host; write ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "hosts.toml: it lists no host; write [[host]]"),
        ("host = []", "it lists no host"),
        ("[[host]]\ngpus = 1\n", "hosts.toml:1: host[0].address is missing; write a line"),
        ('[[host]]\naddress = "a"\n', "hosts.toml:1: host a: neither gpus nor slots is set"),
        (
            '[[host]]\naddress = "a"\ngpus = 1\nslots = 2\n',
            "hosts.toml:1: host a: gpus and slots are set",
        ),
        (
            '[[host]]\naddress = "a"\ngpus = 1\n\n[[host]]\naddress = "a"\ngpus = 1\n',
            "hosts.toml:5: address a occurs twice, in entries 1 and 2; give each machine one entry",
        ),
        (
            '[[host]]\naddress = "a"\nlogin = "x"\ngpus = 1\n'
            '[[host]]\naddress = "b"\nlogin = "x"\ngpus = 1\n',
            "hosts.toml:5: login x occurs twice, in entries 1 and 2; give each machine one entry",
        ),
        (
            '[defaults]\nuser = "ann"\nport = 2222\n'
            '[[host]]\naddress = "a"\ngpus = 1\n'
            '[[host]]\naddress = "b"\nlogin = "A"\ngpus = 1\n',
            "hosts.toml:7: login ann@A port 2222 occurs twice, in entries 1 and 2; give",
        ),
        (
            '[[host]]\naddress = "a"\nname = "x"\ngpus = 1\n'
            '[[host]]\naddress = "b"\nname = "x"\ngpus = 1\n',
            "hosts.toml:5: name x occurs twice",
        ),
        (
            '[[host]]\naddress = "a"\nnmae = "x"\ngpus = 1\n',
            "hosts.toml:3: unknown key host[0].nmae; did you mean name?",
        ),
        (
            'user = "x"\n[[host]]\naddress = "a"\ngpus = 1\n',
            "hosts.toml:1: unknown key user; it belongs to [[host]]",
        ),
        (
            '[[host]]\naddress = "a"\ngpus = 1\nprice_per_hour = 1\n\n'
            '[[host]]\naddress = "b"\ngpus = 1\nprice_per_hour = 1\ncurrency = "EUR"\n',
            "hosts.toml:6: the price of b is in EUR, that of a in USD; give all prices in one",
        ),
        (
            'currency = "CHF"\n[[host]]\naddress = "a"\ngpus = 1\ncurrency = "EUR"\n',
            "hosts.toml:2: the price of a is in EUR, the file's in CHF; give",
        ),
        (
            '[[host]]\naddress = "a"\ngpus = 1\ncurrency = "euro"\n',
            "hosts.toml:4: host[0].currency = 'euro' is not usable; write a currency of three",
        ),
        (
            'host = ["10.0.0.1"]\n',
            "hosts.toml:1: host[0] is a section, not a value; write [[host]] and its keys",
        ),
        ('[[host]]\naddress = "a"\ngpus = "2"\n', "hosts.toml:3: host[0].gpus = '2': must be"),
        ('[[host]]\naddress = "a"\ngpus = 65\n', "hosts.toml:3: host[0].gpus = 65"),
        ('[[host]]\naddress = "a"\ngpus = 1\nport = 0\n', "hosts.toml:4: host[0].port = 0"),
        ('[[host]]\naddress = "-oX"\ngpus = 1\n', "hosts.toml:2: host[0].address = '-oX'"),
        ('[[host]]\naddress = "a"\nname = "a/b"\ngpus = 1\n', "name = 'a/b' is not usable"),
        ('[[host]]\naddress = "a"\nname = "a\\n"\ngpus = 1\n', "is not usable; write letters"),
        ('[[host]]\naddress = "fe80::1"\ngpus = 1\n', "'fe80::1' is not usable; write an IPv4"),
        ('[[host]]\naddress = "a:22"\ngpus = 1\n', "the port of ssh is port = 2222"),
        ('[defaults]\nuser = "$(id)"\n[[host]]\naddress = "a"\n', "write the name of a user"),
        ('[defaults]\ninterface = "e;id"\n[[host]]\naddress = "a"\n', "such as ens5"),
        (
            '[[host]]\naddress = "a"\ngpus = 1\nprice_per_hour = 1e308\n',
            "hosts.toml:4: host[0].price_per_hour = 1e+308",
        ),
        ('currency = "dollars"\n[[host]]\naddress = "a"\ngpus = 1\n', "hosts.toml:1: currency"),
        ("[[host]\n", "hosts.toml:1: is not TOML"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text)


def test_prices_that_differ_by_host_are_summed_in_their_currency(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    entry = '[[host]]\naddress = "{}"\ngpus = 1\nprice_per_hour = {}\n{}\n'
    file.write_text(entry.format("a", 1.25, 'currency = "EUR"'))
    assert load_hosts(str(file)).currency == "EUR"
    file.write_text(
        '[defaults]\ncurrency = "EUR"\n' + entry.format("a", 1.25, "") + entry.format("b", 3, "")
    )
    hosts = load_hosts(str(file))
    assert (hosts.price_per_hour, hosts.currency) == (4.25, "EUR")


@pytest.mark.parametrize("key", ["port = 220{}", 'user = "pod{}"'])
def test_machines_behind_one_login_differ_in_port_or_user(tmp_path: Path, key: str) -> None:
    entry = '[[host]]\naddress = "10.0.0.{}"\nlogin = "relay"\ngpus = 1\n' + key + "\n"
    file = tmp_path / "hosts.toml"
    file.write_text(entry.format(1, 1) + entry.format(2, 2))
    assert load_hosts(str(file)).ranks_per_host == (1, 1)


@pytest.mark.parametrize("name", ["missing.toml", "missing.tml", "cluster.json", "hosts.yaml"])
def test_a_file_that_is_not_there(name: str) -> None:
    """Its name was taken for a host's, and a plan made of it."""
    with pytest.raises(ConfigError, match=rf"{re.escape(name)}: cannot read the hosts"):
        load_hosts(name)


@given(st.text(max_size=30))
def test_any_text_gives_safe_hosts_or_is_refused(text: str) -> None:
    try:
        hosts = load_hosts(text)
    except ConfigError:
        return
    for host in hosts.host:
        assert not host.address.startswith("-")
        assert not set(host.address) & set(" ;|&$`'\"\\\n")


@pytest.mark.parametrize("address", ["-v", "a b", "a;b", "$(date)", "a\n", ""])
def test_an_address_is_never_an_option_or_a_command(address: str) -> None:
    with pytest.raises(ValidationError):
        Host(address=address, gpus=1)


def test_the_hosts_of_a_run_are_recorded(tmp_path: Path) -> None:
    assert recorded_hosts(tmp_path) is None
    hosts = load_hosts("root@10.0.0.1:2,10.0.0.2:1")
    record_hosts(tmp_path, hosts)
    assert recorded_hosts(tmp_path) == hosts


def test_a_run_that_was_trained_here_since_is_resumed_here(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run().path, run)
    hosts = load_hosts("gone.invalid:1")
    record_hosts(run, hosts)
    assert main(["train", str(run)]) != 0
    assert main(["train", str(run), "--ranks", "1"]) == 0
    assert recorded_hosts(run) == hosts, "the report needs their prices"
    assert main(["train", str(run)]) == 0


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"\xff", b"[]", b"{}", b'{"host": [{"ip": "::1"}]}']
)
def test_a_damaged_record_of_hosts_is_one_line(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / HOSTS_FILE).write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"hosts\.json: .*dragoman train .* --hosts") as error:
        recorded_hosts(tmp_path)
    assert "\n" not in str(error.value)


def test_a_record_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / HOSTS_FILE).mkdir()  # the one place that not even root can write a file to
    with pytest.raises(MachineError, match=r"hosts\.json.*; check the disk"):
        record_hosts(tmp_path, load_hosts("10.0.0.1:1"))
    assert [path.name for path in tmp_path.iterdir()] == [HOSTS_FILE]


@pytest.mark.parametrize("name", ["../../x", "/etc", "..", "a/b", "a\n", "\x1b[2J", "-x"])
def test_a_host_s_name_names_no_other_folder(name: str, tmp_path: Path) -> None:
    """Its logs lie below it. The record of a run may have come from somebody else."""
    file = tmp_path / "hosts.toml"
    entry = f'[[host]]\naddress = "a"\ngpus = 1\nname = {json.dumps(name)}\n'
    file.write_text(entry)
    with pytest.raises(
        ConfigError, match=r"hosts\.toml:4: .*name .* write letters, digits"
    ) as caught:
        load_hosts(str(file))
    assert str(caught.value).isprintable()
    good = Hosts(host=(Host(address="a", name="good", gpus=1),)).model_dump_json()
    (tmp_path / "hosts.json").write_text(good.replace('"good"', json.dumps(name)))
    with pytest.raises(CheckpointError, match="does not say which hosts"):
        recorded_hosts(tmp_path)


def test_a_path_may_have_spaces_and_any_letters_but_nothing_that_a_shell_or_terminal_reads(
    tmp_path: Path,
) -> None:
    file = tmp_path / "hosts.toml"
    entry = '[[host]]\naddress = "a"\ngpus = 1\n'
    for path in ("/tmp/xü y/.venv/bin/python", "/home/用户/bin/python", "x+1/a-b_c@d"):
        file.write_text(f'{entry}python = "{path}"\n')
        (host,) = load_hosts(str(file)).host
        assert host.python == path
    for character in "$`;&|<>(){}[]*?!#~\\'\"\n\x1b\u202e\u2028":
        quoted = json.dumps(f"a{character}b")
        for key in ("python", "folder", "user", "login", "interface", "name"):
            file.write_text(f"{entry}{key} = {quoted}\n")
            with pytest.raises(ConfigError, match=key):
                load_hosts(str(file))
        file.write_text(f"[[host]]\ngpus = 1\naddress = {quoted}\n")
        with pytest.raises(ConfigError, match="address"):
            load_hosts(str(file))
