"""Counts the product: its files and lines, room by room. `make size` prints it.

Lines are all lines of the files; code lines are those that are neither blank, comment nor docstring.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = "inference", "flows"
SLIVER = 60
"""A module with fewer lines is a candidate for its only importer."""


def code_lines(source: str) -> int:
    """The lines that hold a token of code, without docstrings."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - prose)


def main() -> None:
    """Print a line for each room, and the sum."""
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        source = path.read_text()
        lines = source.count("\n")
        counts = 1, lines, code_lines(source), int(lines < SLIVER and path.name != "__init__.py")
        for room in (str(path.parent.relative_to(ROOT)), "product"):
            rooms[room] = [have + more for have, more in zip(rooms[room], counts, strict=True)]
    print(f"{'':32}{'files':>8}{'lines':>8}{'code':>8}{f'under {SLIVER}':>10}")
    for room, (files, lines, code, slivers) in sorted(rooms.items()):
        print(f"{room:32}{files:8,}{lines:8,}{code:8,}{slivers:10,}")


if __name__ == "__main__":
    main()
