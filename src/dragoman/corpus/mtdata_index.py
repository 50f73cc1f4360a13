"""mtdata's index as lines of JSON, made without a pickle: a program of its own.

    python -P -m dragoman.corpus.mtdata_index OUTPUT

Importing `mtdata.index` loads a pickle from a folder of the user. Here the path of that pickle is
an empty file, so the import ends without an index, but after the definition of the class that makes
one from mtdata's own tables (some 15 s). The working directory has to be empty: mtdata would run
files that it finds there.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dragoman.base.files import whole_file

_KEYS: Final = ("url", "filename", "ext", "in_paths", "in_ext", "cols", "meta")
_LICENCES: Final = {"Flores": "flores", "AllenAi": "allenai_nllb"}
"""Groups of mtdata whose module states one licence for all of their corpora."""


def main(output: Path) -> None:
    """Write a line for each corpus of mtdata's index; raises the errors of mtdata."""
    import mtdata

    logging.disable(logging.CRITICAL)
    mtdata.cached_index_file = Path(os.devnull)
    spec = importlib.util.find_spec("mtdata.index")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mtdata.index"] = module
    with suppress(EOFError):  # there is nothing to unpickle
        spec.loader.exec_module(module)
    index = module.Index()
    index.load_all()
    licences = _licences(Path(mtdata.resource_dir))
    with whole_file(output) as file:
        for entry in index.entries.values():
            values: dict[str, Any] = {"did": str(entry.did)}
            values |= {key: value for key in _KEYS if (value := getattr(entry, key, None))}
            licence = licences.get(entry.did.group) or licences.get(str(entry.url))
            if licence:
                values["meta"] = {**(entry.meta or {}), "licence": licence}
            file.write(json.dumps(values).encode() + b"\n")


def _licences(resources: Path) -> dict[str, str]:
    """The licences that mtdata knows, by group or by address."""
    found: dict[str, str] = {}
    for group, name in _LICENCES.items():
        module: Any = sys.modules.get(f"mtdata.index.{name}")
        found[group] = getattr(module, "_LICENSE", "")
    table = resources / "elrc_share.tsv"
    if table.is_file():
        for line in table.read_text(encoding="utf-8").splitlines():
            columns = line.split("\t")
            if len(columns) > 8:
                found[columns[6]] = columns[7]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
