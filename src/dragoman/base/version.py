"""The version of dragoman; pyproject.toml reads it here."""

from typing import Final

VERSION: Final = "0.1.0"
