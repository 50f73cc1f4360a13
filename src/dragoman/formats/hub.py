"""A run's model on the Hugging Face Hub: the export in Hugging Face form, in one commit.

huggingface_hub sends the requests. It finds the token itself, in HF_TOKEN or where `hf auth login`
has put it. This module neither shows nor stores the token, removes it from all messages of a
server, and sends it to no address but the Hub's own.

Large files are sent first, and the commit that names them last. An upload that broke off leaves the
model on the Hub unchanged, and files that had arrived are not sent again.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from dragoman.base.errors import ConfigError, DragomanError, MachineError
from dragoman.base.languages import is_language, parse_language
from dragoman.base.printable import printable_line
from dragoman.base.version import VERSION
from dragoman.formats.bundle import BundleInfo, BundleScore
from dragoman.formats.kinds import NOT_STATED

if TYPE_CHECKING:
    from httpx2 import Client, Request
    from huggingface_hub import HfApi

_LICENCES: Final = frozenset({
    "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd-2-clause", "bsd-3-clause", "bsl-1.0",
    "cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "ecl-2.0", "epl-2.0", "etalab-2.0",
    "eupl-1.2", "gfdl", "gpl-2.0", "gpl-3.0", "isc", "lgpl-2.1", "lgpl-3.0", "mit", "mpl-2.0",
    "odbl", "odc-by", "unlicense", "wtfpl", "zlib",
})  # fmt: skip
"""Names that the Hub has for licences which a translation model may have."""
_LONGEST_LICENCE_NAME: Final = 60
_UNKNOWN_LANGUAGE: Final = "und"
_LONGEST_WORDS: Final = 300
"""Characters of a server's message that are shown."""
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Pushed:
    """The place of a model on the Hub.

    url: its page. commit: the URL of this version.
    """

    url: str
    commit: str


def card_header(info: BundleInfo, *, base_form: str = "") -> str:
    """The header of a model card as the Hub reads it: languages, licence and, if the model is for
    transformers, tags and scores.

    base_form: the architecture's name in transformers; "" in an export for another library.
    """
    licence, licence_name = _licence(info.licence)
    languages = dict.fromkeys(map(_language, info.languages))
    values: dict[str, Any] = {
        "language": [one for one in languages if one],
        "license": licence,
        "license_name": licence_name,
        "pipeline_tag": "translation",
    }
    if base_form:
        values["library_name"] = "transformers"
        values["tags"] = ["translation", base_form, "dragoman"]
        results = [_result(info, score) for score in info.scores]
        values["model-index"] = results and [{"name": info.name, "results": results}]
    # Values of JSON are values of YAML. Without quotes, the language no would be false.
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value
    ]
    return "\n".join(["---", *lines, "---"])


def _result(info: BundleInfo, score: BundleScore) -> dict[str, Any]:
    """A score in the Hub's form."""
    metric, text = score.signature.partition("|")[0], printable_line(score.text)
    return {
        "task": {"type": "translation", "name": f"Translation {_languages_of(info, text)}"},
        "dataset": {"type": _slug(f"{info.name} {text.partition(',')[0]}"), "name": text},
        "metrics": [
            {
                "type": "bleu" if metric == "BLEU" else "chrf",
                "name": metric,
                "value": score.value,
                "args": {"signature": score.signature},
            }
        ],
    }


def _languages_of(info: BundleInfo, text: str) -> str:
    """The direction that was scored; of several, the one named in `text`, as in "test en-de,"."""
    directions = [f"{one.source}-{one.target}" for one in info.directions]
    own = [one for one in directions if text.partition(",")[0].endswith(f" {one}")]
    return own[0] if own else "-".join(info.languages)


def check_can_push(hub_id: str) -> HfApi:
    """The Hub's interface, after the checks that a push needs.

    Raises MachineError if huggingface_hub is not installed, ConfigError if there is no token or
    this is not the name of a model there.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            disable_progress_bars,
            validate_repo_id,
        )
    except ImportError as error:
        raise MachineError(
            "huggingface_hub is not installed",
            remedy="install it: pip install 'dragoman[huggingface]'",
        ) from error
    try:
        if hub_id.count("/") != 1:
            raise HFValidationError("it has no owner")
        validate_repo_id(hub_id)
    except HFValidationError as error:
        raise ConfigError(
            f"{hub_id!r} is not the name of a model on the Hub",
            remedy="give OWNER/NAME, such as my-name/demo-en-de",
        ) from error
    if huggingface_hub.get_token() is None:
        raise ConfigError(
            "there is no token for the Hub",
            place="HF_TOKEN",
            remedy="make one that may write, and run hf auth login or set the variable",
        )
    disable_progress_bars()
    return huggingface_hub.HfApi(library_name="dragoman", library_version=VERSION)


def push(api: HfApi, folder: Path, hub_id: str, *, private: bool) -> Pushed:
    """Send every file of an export; makes the model's repository if there is none.

    Raises ConfigError if the Hub refuses the token or the card, MachineError if it cannot be
    reached, answers with another error, or is not understood. The Hub has all files then, or none.
    """
    from huggingface_hub import CommitOperationAdd

    files = sorted(path for path in folder.rglob("*") if path.is_file())
    added = [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in files]
    try:
        with warnings.catch_warnings(), _token_stays_with(api.endpoint):
            warnings.simplefilter("ignore")
            url = api.create_repo(hub_id, private=private or None, exist_ok=True)
            done = api.create_commit(
                hub_id, added, commit_message=f"Model by dragoman {VERSION}", num_threads=2
            )
    except Exception as error:  # an answer of another form may raise anything
        raise _failure(error, api.endpoint, hub_id) from error
    return Pushed(_said(str(url)), _said(str(done.commit_url)))


@contextmanager
def _token_stays_with(endpoint: str) -> Iterator[None]:
    """Inside the block requests to other addresses have no token, and nothing is logged.

    An answer may name any address for the next request: huggingface_hub would send the token there.
    The library has no public way to read the present factory, which must be restored afterwards.
    """
    from huggingface_hub.utils import _http, set_client_factory  # type: ignore[attr-defined]

    make_client = _http._GLOBAL_CLIENT_FACTORY
    home = {_origin(endpoint), ("https", urlsplit(endpoint).hostname, _PORTS["https"])}
    handlers = logging.getLogger("huggingface_hub").handlers

    def check(request: Request) -> None:
        if request.url.scheme not in _PORTS:
            raise ValueError(f"it names the address {request.url}")
        if _origin(str(request.url)) not in home:
            request.headers.pop("Authorization", None)

    def make_checked_client() -> Client:
        client = make_client()
        client.event_hooks["request"].append(check)
        return client

    def drop(_record: logging.LogRecord) -> bool:
        return False  # the error says in one line what went wrong

    set_client_factory(make_checked_client)
    for handler in handlers:
        handler.addFilter(drop)
    try:
        yield
    finally:
        set_client_factory(make_client)
        for handler in handlers:
            handler.removeFilter(drop)


def _origin(address: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _said(words: str) -> str:
    """A server's message, as one line of bounded length without the token."""
    from huggingface_hub import get_token

    if token := get_token():
        words = words.replace(token, "<token>")
    words = printable_line(" ".join(words.split()))
    return words if len(words) <= _LONGEST_WORDS else words[: _LONGEST_WORDS - 3] + "..."


def _failure(error: Exception, endpoint: str, hub_id: str) -> DragomanError:
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        BadRequestError,
        HfHubHTTPError,
        HTTPError,  # of the library for HTTP, which is another one in some versions
    )

    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # huggingface_hub wraps whatever ends an upload
    if isinstance(error, HfHubHTTPError):
        return _refused(error.response.status_code, error.server_message, hub_id)
    if isinstance(error, HTTPError | OSError):
        return MachineError(
            f"the Hub at {endpoint} cannot be reached: {_said(str(error))}",
            place=hub_id,
            remedy="look at the network, and run the same command again: it goes on",
        )
    if isinstance(error, ValueError) and isinstance(error.__cause__, BadRequestError):
        return ConfigError(
            f"the Hub rejects the card: {_said(str(error))}",
            place=hub_id,
            remedy="report it to the developers of dragoman, with the card",
        )
    return MachineError(
        f"the Hub's answer is not understood: {_said(f'{type(error).__name__}: {error}')}",
        place=endpoint,
        remedy="see that a Hub is at this address (HF_ENDPOINT), and run the same command again",
    )


def _refused(status: int, words: str | None, hub_id: str) -> DragomanError:
    if status in (401, 403):
        return ConfigError(
            f"the Hub refuses the token for this model ({status})",
            place=hub_id,
            remedy="use a token with write access: `hf auth login`, or set HF_TOKEN",
        )
    return MachineError(
        f"the Hub answers: {_said(words or f'status {status}')}",
        place=hub_id,
        remedy="run the same command again later: it goes on",
    )


def _language(code: str) -> str:
    """The language alone in two or three letters, as the Hub wants it: en of eng_Latn."""
    if not is_language(code) or code == _UNKNOWN_LANGUAGE:
        return ""
    first = parse_language(code).tag.partition("-")[0]
    return first if len(first) in (2, 3) else ""


def _licence(words: str) -> tuple[str | None, str | None]:
    """The Hub's name of a licence, or "other" and a name for it; two times None if not stated."""
    if words == NOT_STATED:
        return None, None
    name = _slug(words)
    if name in _LICENCES:
        return name, None
    return "other", name[:_LONGEST_LICENCE_NAME].strip("-.")


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")
