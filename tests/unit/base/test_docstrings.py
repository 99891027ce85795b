"""Each field of a public record has a docstring: what it counts, its unit, and what None or 0 means."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from support import ROOT

FEW = 3
"""The most fields that the docstring of a class may describe."""


def records(source: str) -> Iterator[ast.ClassDef]:
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    for node in classes:
        if not node.name.startswith("_") and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            yield node


def fields(record: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """The public fields, and whether each has a docstring."""
    for statement, following in zip(record.body, [*record.body[1:], None], strict=True):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str())):
                yield name, True
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind), _ if "ClassVar" not in ast.unparse(kind):
                yield name, False


def test_each_field_of_a_public_record_has_a_docstring() -> None:
    lacking = {}
    for path in sorted([*(ROOT / "inference").rglob("*.py"), *(ROOT / "flows").rglob("*.py")]):
        for record in records(path.read_text()):
            found = [(name, said) for name, said in fields(record) if not name.startswith("_")]
            without = [name for name, said in found if not said]
            if without and len(found) > FEW:
                lacking[f"{path.relative_to(ROOT)} {record.name}"] = without
    assert not lacking
