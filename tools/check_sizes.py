"""No file over 400 lines, no function over 60: past that it is time to split."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def oversized(path: Path) -> list[str]:
    """What in this file is too long, one line each."""
    text = path.read_text(encoding="utf-8")
    found = []
    if text.count("\n") > MAX_FILE_LINES:
        found.append(f"{path}: {text.count(chr(10))} lines, at most {MAX_FILE_LINES}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                found.append(
                    f"{path}:{node.lineno}: {node.name} has {lines} lines, "
                    f"at most {MAX_FUNCTION_LINES}"
                )
    return found


def main() -> int:
    """Check every Python file that git knows; the exit code is 1 where one is too long."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    files = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
    found = [line for file in files if Path(file).is_file() for line in oversized(Path(file))]
    print("\n".join(found) or f"{len(files)} files: none over its size")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
