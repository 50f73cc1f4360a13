"""Translations of other systems: programs, and servers with LibreTranslate's interface."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dragoman.base.errors import MachineError
from dragoman.corpus.directions import Direction
from dragoman.evaluation.exam import Format, System

KEY: Final = "LIBRETRANSLATE_API_KEY"
"""The environment variable with the key of a server."""
_TEXTS: Final = 25
"""Texts of a request. Servers limit them."""
_REQUEST_S: Final = 300.0
_LARGEST_BYTES: Final = 16 << 20


def from_program(command: Sequence[str]) -> System:
    """A program that reads lines from its input and writes a translation of each.

    Raises MachineError if it cannot be started, fails or writes another number of lines.
    """

    def translate(texts: Sequence[str], _format: Format) -> list[str]:
        place = command[0]
        text = "".join(f"{line}\n" for line in texts)
        try:
            done = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise MachineError(
                f"the program cannot translate: {error}",
                place=place,
                remedy="run it by hand with a few lines",
            ) from error
        translations = done.stdout.decode("utf-8", "replace").split("\n")
        if translations[-1] == "":
            translations.pop()
        if len(translations) != len(texts):
            raise MachineError(
                f"the program wrote {len(translations)} lines for {len(texts)}",
                place=place,
                remedy="let it write one line for each line",
            )
        return translations

    return translate


def from_server(url: str, direction: Direction) -> System:
    """A server with LibreTranslate's interface; the key is in LIBRETRANSLATE_API_KEY.

    Raises MachineError if it does not answer, or not with translations.
    """

    def translate(texts: Sequence[str], text_format: Format) -> list[str]:
        return list(_asked(url.rstrip("/") + "/translate", direction, texts, text_format))

    return translate


def _asked(
    address: str, direction: Direction, texts: Sequence[str], text_format: Format
) -> Iterator[str]:
    for first in range(0, len(texts), _TEXTS):
        some = list(texts[first : first + _TEXTS])
        request = {
            "q": some,
            "source": direction.source,
            "target": direction.target,
            "format": "html" if text_format == "markup" else "text",
        }
        if key := os.environ.get(KEY):
            request["api_key"] = key
        answer = _answer(address, request)
        translations = answer.get("translatedText") if isinstance(answer, dict) else None
        if not isinstance(translations, list) or len(translations) != len(some):
            raise MachineError(
                "the server does not answer a list of texts with a list of translations",
                place=address,
                remedy="name the address of a server with LibreTranslate's interface",
            )
        yield from map(str, translations)


def _answer(address: str, request: dict[str, Any]) -> Any:
    body = json.dumps(request).encode()
    asked = urllib.request.Request(  # noqa: S310  (http or https: checked by the caller)
        address, data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=_REQUEST_S) as response:  # noqa: S310
            return json.loads(response.read(_LARGEST_BYTES))
    except urllib.error.HTTPError as error:
        said = error.read(500).decode("utf-8", "replace")
        raise MachineError(
            f"the server answers {error.code}: {said}",
            place=address,
            remedy=f"check the address and the languages; a key belongs in {KEY}",
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise MachineError(
            f"no answer: {error}", place=address, remedy="check the address of the server"
        ) from error
