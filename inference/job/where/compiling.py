"""Reads the text of a condition with sqlglot, and compiles it. What a condition may say is listed here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from nightjar.inference.arrow_types import is_text, type_name
from nightjar.inference.errors import JobError
from nightjar.inference.messages import clip, nearest_or_all

GRAMMAR = (
    "write column = value (also <>, <, <=, >, >=), IN (…), BETWEEN … AND …, LIKE, IS NULL, joined by AND, OR, NOT and "
    "brackets"
)


@cache
def parsed(text: str) -> exp.Expr:
    """The parsed text.

    Raises:
        JobError: It is not SQL, or nested too deeply.
    """
    try:
        found = sqlglot.parse(text)
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        said = str(first.get("description") or error).rstrip(".").removeprefix("Invalid expression / ")
        said = "a value or a condition is missing" if said.startswith("Required keyword") else said
        raise refused(text, f"at {first.get('highlight') or ''!r}: {said}; {GRAMMAR}") from None
    except SqlglotError as error:
        said = clip(" ".join(str(error).split()))
        raise refused(text, f"{said}: is a quote or a bracket left open? {GRAMMAR}") from None
    except RecursionError:
        raise refused(text, "it is nested too deeply; write fewer brackets and NOT inside each other") from None
    if len(found) != 1 or found[0] is None:
        raise refused(text, f"this is not one condition; {GRAMMAR}")
    return found[0]


def refused(text: str, said: str) -> JobError:
    """The error that says what is wrong with a condition."""
    return JobError(f"input.where: {said} (in {clip(text)!r})")


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": pc.equal,
    "NEQ": pc.not_equal,
    "LT": pc.less,
    "LTE": pc.less_equal,
    "GT": pc.greater,
    "GTE": pc.greater_equal,
}
"""The comparisons, by sqlglot's names. Arrow raises where a cast to a common type would change a value."""

_SWAPPED = {"LT": "GT", "LTE": "GTE", "GT": "LT", "GTE": "LTE"}
"""The operator that means the same with the sides exchanged."""

_SAID: dict[str, set[str]] = {
    "Paren": {"this"},
    "Not": {"this"},
    "Neg": {"this"},
    "In": {"this", "expressions"},
    "Between": {"this", "low", "high"},
    "Like": {"this", "expression", "negate"},
    "ILike": {"this", "expression", "negate"},
    "Column": {"this"},
    "Literal": {"this", "is_string"},
    "Boolean": {"this"},
    "Cast": {"this", "to"},
    "Identifier": {"this", "quoted"},
    **{name: {"this", "expression"} for name in ("And", "Or", "Is", *_OPERATORS)},
}
"""What is understood of each kind of node. The parser may say more, as `BETWEEN SYMMETRIC`, which must not be passed
over."""

_PUSHED = {"And", "Or", "Paren", "EQ", "LT", "LTE", "GT", "GTE", "In", "Between"}
"""What the statistics of a part of a file can rule out. No negation: of a column with NaN the smallest and the largest
value do not say that it has others."""


Column = Callable[[str], Any]
Build = Callable[[Column], Any]
"""Makes the condition's values of the columns' values: of arrays an array, of `pc.field` an expression."""


@dataclass(frozen=True)
class Part:
    """One of the conditions that AND joins."""

    build: Build
    """Makes the condition's values of the columns' values."""

    names: tuple[str, ...]
    """The columns that the condition names, each once."""

    pushed: bool
    """Whether the statistics of a part of a file can rule the condition out."""

    error: Callable[[pa.ArrowException], JobError]
    """Makes the error for what Arrow says of values that it cannot compare."""

    def takes(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows of a table it takes, as `Condition.mask`."""
        columns = {name: _comparable(table[name]) for name in self.names}
        try:
            value = self.build(columns.__getitem__)
        except (MemoryError, pa.ArrowCancelled):
            raise
        except pa.ArrowException as error:
            # The file is read already, so it is not at fault.
            raise self.error(error) from error
        return np.asarray(pc.fill_null(value, False), dtype=bool)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in the type that `compared_as` gives it."""
    kind = compared_as(column.type)
    if is_.is_dictionary(column.type):
        values = pa.dictionary(column.type.index_type, kind, column.type.ordered)
        column = column.cast(values)  # Arrow cannot decode a dictionary of views
    return column.cast(kind)


def scalar(written: bool | str, quoted: bool, own: pa.DataType) -> pa.Scalar:
    """A literal in the type that a column of type `own` is compared in.

    Raises:
        ValueError: The type has no such value.
    """
    kind = compared_as(own)
    if is_.is_boolean(kind) != isinstance(written, bool):
        raise ValueError("a bool is only true or false")
    if isinstance(written, bool):
        return pa.scalar(written)
    if quoted == (family(kind) == "number"):
        raise ValueError("numbers alone stand without quotes")
    return pa.scalar(written).cast(own).cast(kind)


def compared_as(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow can compare the values of a column, each unchanged."""
    kind = kind.value_type if is_.is_dictionary(kind) else kind
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_decimal32(kind) or is_.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return pa.large_string() if is_.is_string_view(kind) else kind


def family(kind: pa.DataType) -> str:
    """Types of one family compare with each other; empty for a type that does not compare."""
    kind = compared_as(kind)
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind):
        return "number"
    if is_text(kind):
        return "text"
    if is_.is_timestamp(kind):
        return f"time {kind.tz}"  # Arrow compares no two time zones
    if is_.is_date(kind):
        return "date"
    return "bool" if is_.is_boolean(kind) else ""


class Compiler:
    """Makes a condition of a parsed text. schema: of the input; None if it is not known yet."""

    def __init__(self, text: str, schema: pa.Schema | None) -> None:
        self._text, self._schema = text, schema

    def columns(self) -> tuple[str, ...]:
        """The columns that the text names, each once, in its order. All is checked that needs no types."""
        whole = parsed(self._text)
        self._build(whole)
        return self._named(whole)

    def parts(self, of: Collection[str] | None = None) -> list[Part]:
        """The conditions that AND joins. of: only those that name no other columns than these."""
        assert self._schema is not None
        found, whole = [], parsed(self._text).unnest()
        for node in whole.flatten() if isinstance(whole, exp.And) else [whole]:
            names = self._named(node)
            if of is not None and not set(names) <= set(of):
                continue
            build = self._build(node)
            # Of two columns Arrow may fail to cast the statistics, and then use none.
            pushed = len(names) == 1 and self._as_it_is(names[0]) and _may_be_pushed(node)
            part = Part(build, names, pushed, partial(self._incomparable, node))
            part.takes(self._schema.empty_table())  # so that what Arrow cannot compare is known before the night
            found.append(part)
        return found

    def _incomparable(self, node: exp.Expr, error: pa.ArrowException) -> JobError:
        return refused(self._text, f"{clip(node.sql())!r} cannot be compared in these types: {error}")

    def _as_it_is(self, name: str) -> bool:
        return bool(compared_as(kind := self._kind_named(name)) == kind)

    def _named(self, node: exp.Expr) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._name(each) for each in node.find_all(exp.Column, bfs=False)))

    def _name(self, node: exp.Column) -> str:
        parts = [part.name for part in node.parts]
        if len(parts) != 1:
            whole = ".".join(parts)
            self._fail(f'{whole!r}: only whole columns can be compared; a dot in a name needs "{whole}"')
        return parts[0]

    def _kind_named(self, name: str) -> pa.DataType:
        assert self._schema is not None
        return self._schema.field(name).type

    def _build(self, node: exp.Expr) -> Build:
        self._check_understood(node)
        match node:
            case exp.Paren():
                return self._build(node.this)
            case exp.And() | exp.Or():
                join = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
                joined = [self._build(each) for each in node.flatten(unnest=False)]
                return lambda column: reduce(join, (build(column) for build in joined))
            case exp.Not():
                inner = self._build(node.this)
                return lambda column: pc.invert(inner(column))
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self._comparison(node)
            case exp.In():
                return self._in(node)
            case exp.Between():
                ends = ((exp.GTE, "low"), (exp.LTE, "high"))
                low, high = (
                    self._comparison(kind(this=node.this.copy(), expression=node.args[end].copy()))
                    for kind, end in ends
                )
                return lambda column: pc.and_kleene(low(column), high(column))
            case exp.Is():
                return self._is(node)
            case exp.Like() | exp.ILike():
                return self._like(node)
            case exp.Column():
                name, kind = self._column(node)
                if kind is not None and not is_.is_boolean(kind):
                    self._fail(f"{name!r} is {type_name(kind)}, so it is no condition by itself; compare it")
                return lambda column: column(name)
            case _:
                return self._fail(f"{clip(node.sql())!r} cannot be part of a condition here; {GRAMMAR}")

    def _check_understood(self, node: exp.Expr) -> None:
        known = _SAID.get(type(node).__name__, set(node.args))
        if any(value for key, value in node.args.items() if key not in known):
            self._fail(f"{clip(node.sql())!r} cannot be part of a condition here; {GRAMMAR}")

    def _comparison(self, node: exp.Expr) -> Build:
        left, right, key = node.this.unnest(), node.expression.unnest(), type(node).__name__
        if not isinstance(left, exp.Column):
            left, right, key = right, left, _SWAPPED.get(key, key)
        if not isinstance(left, exp.Column):
            self._fail(f"{clip(node.sql())!r} compares no column; {GRAMMAR}")
        name, kind = self._column(left)
        compare = _OPERATORS[key]
        if isinstance(right, exp.Column):
            other, other_kind = self._column(right)
            if kind is not None and other_kind is not None and family(kind) != family(other_kind):
                self._fail(
                    f"{name!r} is {type_name(kind)} and {other!r} is {type_name(other_kind)}; they do not compare"
                )
            return lambda column: compare(column(name), column(other))
        value = self._value(right, name, kind)
        return lambda column: compare(column(name), value)

    def _in(self, node: exp.Expr) -> Build:
        name, kind = self._subject(node, "IN (value, value, …)", fits=bool(node.expressions))
        values = [self._value(each.unnest(), name, kind) for each in node.expressions]
        if kind is None:
            return lambda column: column(name)
        if any(value.as_py() == 0 for value in values if is_.is_floating(value.type)):
            values += [pa.scalar(zero, values[0].type) for zero in (0.0, -0.0)]  # Arrow compares the bits of floats
        wanted = pa.array(values, compared_as(kind))

        def build(column: Column) -> Any:
            given = column(name)
            found = pc.is_in(given, value_set=wanted)
            if isinstance(found, pc.Expression):
                return found
            # Arrow finds a null in no set; in SQL nobody knows.
            return pc.if_else(pc.is_null(given), pa.scalar(None, pa.bool_()), found)

        return build

    def _is(self, node: exp.Expr) -> Build:
        name, kind = self._subject(node, "IS NULL")
        if isinstance(node.expression, exp.Null):
            return lambda column: pc.is_null(column(name))
        if not isinstance(node.expression, exp.Boolean):
            self._fail(f"{clip(node.sql())!r}: write IS NULL, IS NOT NULL, IS TRUE or IS FALSE")
        self._value(node.expression, name, kind)
        wanted = pa.scalar(bool(node.expression.this))
        return lambda column: pc.fill_null(pc.equal(column(name), wanted), False)

    def _like(self, node: exp.Expr) -> Build:
        pattern, cased = node.expression.unnest(), isinstance(node, exp.Like)
        name, kind = self._subject(node, "LIKE 'text%'", fits=isinstance(pattern, exp.Literal))
        if not pattern.is_string or (kind is not None and not is_text(kind)):
            self._fail(f"{name!r} LIKE {pattern.sql()}: LIKE compares a column of text with a text in quotes")
        text, negated = str(pattern.this), bool(node.args.get("negate"))
        regex = _as_regex(text)  # in Arrow's own LIKE a backslash is an escape

        def build(column: Column) -> Any:
            found = pc.match_substring_regex(column(name), regex, ignore_case=not cased)
            return pc.invert(found) if negated else found

        return build

    def _subject(self, node: exp.Expr, form: str, *, fits: bool = True) -> tuple[str, pa.DataType | None]:
        """The column that a condition is on. form: of what is written behind it, for the message if it is none."""
        column = node.this.unnest()
        if not isinstance(column, exp.Column) or not fits:
            self._fail(f"{clip(node.sql())!r}: write column {form}")
        return self._column(column)

    def _column(self, node: exp.Column) -> tuple[str, pa.DataType | None]:
        name = self._name(node)
        if self._schema is None:
            return name, None
        count = self._schema.names.count(name)
        if count != 1:
            told = nearest_or_all(name, self._schema.names)
            self._fail(
                f"{name!r} is {'not a column' if not count else 'there twice among the columns'} of the input{told}",
            )
        kind = self._kind_named(name)
        kind = kind.value_type if is_.is_dictionary(kind) else kind
        if family(kind) == "":
            self._fail(f"{name!r} is {type_name(kind)}, which input.where cannot compare")
        return name, kind

    def _value(self, node: exp.Expr, name: str, kind: pa.DataType | None) -> pa.Scalar:
        """A literal, as a value that the column's values are compared with. With no type: as null."""
        literal, negative = node, False
        if isinstance(node, exp.Neg):
            literal, negative = node.this.unnest(), True
        if isinstance(literal, exp.Cast) and literal.to.sql() in ("DATE", "TIMESTAMP", "TIMESTAMPTZ"):
            literal = literal.this
        if isinstance(literal, exp.Null):
            self._fail(f"a comparison of {name!r} with NULL is never true; write {name} IS NULL")
        if not isinstance(literal, (exp.Literal, exp.Boolean)) or (negative and getattr(literal, "is_string", True)):
            self._fail(f"{clip(node.sql())!r} is no value; write a number, true, false, or a text in single quotes")
        for each in node.walk():
            self._check_understood(each)
        if kind is None:
            return pa.scalar(None)
        written = f"-{literal.this}" if negative else literal.this
        try:
            return scalar(written, isinstance(literal, exp.Literal) and literal.is_string, kind)
        except (ValueError, pa.ArrowNotImplementedError):
            self._fail(f"{name!r} is {type_name(kind)}, and {clip(node.sql())} is no value of that type")

    def _fail(self, said: str) -> NoReturn:
        raise refused(self._text, said)


def _as_regex(pattern: str) -> str:
    pieces = ({"%": ".*", "_": "."}.get(letter) or re.escape(letter) for letter in pattern)
    return f"^(?s:{''.join(pieces)})$"


def _may_be_pushed(node: exp.Expr) -> bool:
    kinds = {type(each).__name__ for each in node.walk()}
    return kinds <= _PUSHED | {"Column", "Identifier", "Literal", "Boolean", "Neg", "Cast", "DataType"}
