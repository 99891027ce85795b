"""The checks that decide whether a run may be published, over what the audit counted and merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from nightjar.inference.job import Check, Job

if TYPE_CHECKING:
    from nightjar.inference.rescore import Rescored

_ENDS = {"min": ("smallest", "below"), "max": ("greatest", "above")}


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's verdict.

    name: `complete`, `quarantine`, or `<column>.<min|max|nulls|finite>`. observed, limit: for a table.
    sentence: what happened and, when it did not pass, what to do next, naming the job's key.
    """

    name: str
    passed: bool
    observed: str
    limit: str
    sentence: str


def budget_rows(max_quarantined: float, rows: int) -> int:
    """How many of `rows` may be quarantined: the share as it was written, rounded down.

    0.001 × 1000 is 1: the decimal that the user wrote counts, not the binary fraction next to it.
    """
    return int(Fraction(repr(float(max_quarantined))) * rows)


def evaluate(
    job: Job,
    *,
    shards: int,
    missing: int,
    rows_in: int,
    rows_quarantined: int,
    metrics: dict[str, Any],
    rescored: Rescored | None = None,
) -> tuple[GateResult, ...]:
    """Every gate of the job, whether it passed or not. `metrics` is `Metrics.results()`."""
    results = [
        _complete(shards, missing),
        _quarantine(job.retry.max_quarantined, rows_in, rows_quarantined),
    ]
    if rescored is not None:
        results.append(_rescore(rescored, job.audit.tolerance))
    for index, check in enumerate(job.checks):
        results += _column(check, metrics.get("columns", {}).get(check.column), f"checks[{index}]")
    return tuple(results)


def _complete(shards: int, missing: int) -> GateResult:
    observed = f"{shards - missing:,} of {shards:,} shards"
    if not missing:
        return GateResult("complete", True, observed, "all", f"All {shards:,} shards are done.")
    have = "1 shard has" if missing == 1 else f"{missing:,} shards have"
    sentence = (
        f"{have} no result. Mend the cause that the report names, then run again: only these are scored. "
        "Where time alone may help, raise retry.attempts."
    )
    return GateResult("complete", False, observed, "all", sentence)


def _quarantine(share: float, rows_in: int, quarantined: int) -> GateResult:
    allowed = budget_rows(share, rows_in)
    observed, limit = f"{quarantined:,} of {rows_in:,} rows", f"{allowed:,} rows ({share:g} of the run)"
    if quarantined <= allowed:
        sentence = f"{_rows(quarantined)} in quarantine, of {allowed:,} allowed."
        return GateResult("quarantine", True, observed, limit, sentence)
    sentence = (
        f"{_rows(quarantined)} in quarantine, more than the {allowed:,} that retry.max_quarantined = "
        f"{share:g} allows. Replay one with the command that the quarantine prints, mend the input or the "
        "model, or raise retry.max_quarantined."
    )
    return GateResult("quarantine", False, observed, limit, sentence)


def _rescore(found: Rescored, tolerance: float) -> GateResult:
    compared = f"{_rows(found.rows)} of {found.shards:,} shards"
    left_out = f" ({found.changed:,} left out: their input has changed since)" if found.changed else ""
    observed, limit = f"{found.differing:,} of {compared} differ{left_out}", f"0 (tolerance {tolerance:g})"
    if not found.differing:
        sentence = f"Scored again, {compared} came out the same, within {found.greatest:.2g}{left_out}."
        return GateResult("rescore", True, observed, limit, sentence)
    sentence = (
        f"Scored again, {found.differing:,} of {compared} came out different; {found.first}. A device may be "
        "computing wrongly, or the model answers differently each time. Score everything again with --fresh, "
        "elsewhere if one worker is suspected; where the model is that inexact, raise audit.tolerance."
    )
    return GateResult("rescore", False, observed, limit, sentence)


def _column(check: Check, state: dict[str, Any] | None, key: str) -> Iterator[GateResult]:
    for asked in ("min", "max", "nulls", "finite"):
        limit = getattr(check, asked)
        if limit is None or limit is False:
            continue
        if state is None:
            sentence = f"{check.column!r} was not measured, so {key}.{asked} cannot be judged. Run the job again."
            yield GateResult(f"{check.column}.{asked}", False, "not measured", str(limit), sentence)
        elif asked == "nulls":
            yield _nulls(check.column, state, f"{key}.nulls", limit)
        elif asked == "finite":
            yield _finite(check.column, state, f"{key}.finite")
        else:
            yield _end(check.column, state, f"{key}.{asked}", asked, limit)


def _end(column: str, state: dict[str, Any], key: str, end: str, limit: float) -> GateResult:
    name, observed, bound = f"{column}.{end}", state[end], _number(limit)
    if (kind := state.get("kind", "number")) not in ("", "number"):
        shown = str(observed) if observed is not None else _KINDS.get(kind, kind)
        sentence = f"{key} compares numbers, but {column!r} holds {_KINDS.get(kind, kind)}. Remove {key}."
        return GateResult(name, False, shown, bound, sentence)
    if observed is None:
        sentence = (
            f"{column!r} has no value to compare with {key} = {bound}: {_why_none(state)}. "
            f"Mend the input or the model, or remove {key}."
        )
        return GateResult(name, False, "no value", bound, sentence)
    word, side = _ENDS[end]
    left_out = f" ({state['nonfinite']:,} not finite left out)" if state["nonfinite"] else ""
    shown = _number(observed) + left_out
    if observed >= limit if end == "min" else observed <= limit:
        sentence = f"The {word} {column!r} is {shown}; {key} = {bound} holds."
        return GateResult(name, True, shown, bound, sentence)
    sentence = (
        f"The {word} {column!r} is {shown}, {side} {key} = {bound}. "
        f"Mend the input or the model, or {'lower' if end == 'min' else 'raise'} {key}."
    )
    return GateResult(name, False, shown, bound, sentence)


def _nulls(column: str, state: dict[str, Any], key: str, share: float) -> GateResult:
    rows, nulls = state["rows"], state["nulls"]
    allowed = budget_rows(share, rows)
    observed, limit = f"{nulls:,} of {rows:,} rows", f"{allowed:,} rows ({share:g})"
    if nulls <= allowed:
        sentence = f"{column!r} is null in {_rows(nulls)}; {key} = {share:g} holds."
        return GateResult(f"{column}.nulls", True, observed, limit, sentence)
    sentence = (
        f"{column!r} is null in {_rows(nulls)}, more than the {allowed:,} that {key} = {share:g} allows. "
        f"Mend the input or the model, or raise {key}."
    )
    return GateResult(f"{column}.nulls", False, observed, limit, sentence)


def _finite(column: str, state: dict[str, Any], key: str) -> GateResult:
    name, count = f"{column}.finite", state["nonfinite"]
    if (kind := state.get("kind", "number")) in ("other", "mixed"):
        sentence = f"{key} asks for numbers, but {column!r} holds {_KINDS[kind]}. Remove {key}."
        return GateResult(name, False, _KINDS[kind], "0", sentence)
    observed = f"{count:,} not finite"
    if not count:
        return GateResult(name, True, observed, "0", f"Every value of {column!r} is finite; {key} holds.")
    values = "1 value" if count == 1 else f"{count:,} values"
    sentence = (
        f"{column!r} is NaN or infinite in {values}, which {key} forbids. Mend the input or the model, or remove {key}."
    )
    return GateResult(name, False, observed, "0", sentence)


_KINDS = {
    "timestamp_utc": "timestamps",
    "timestamp": "timestamps",
    "date": "dates",
    "time": "times",
    "duration": "durations",
    "list": "lists",
    "other": "values that are not numbers",
    "mixed": "different types in different files",
}


def _why_none(state: dict[str, Any]) -> str:
    if not state["rows"]:
        return "no row was scored"
    if state["nulls"] == state["rows"]:
        return "every row is null"
    return "no value is finite" if not state["nulls"] else "every value is null, NaN or infinite"


def _number(value: int | float) -> str:
    """Short where that is exact, so that a value just past its limit never reads the same as the limit."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
