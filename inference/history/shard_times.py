"""When the shards of a revision were scored, by which worker, and how fast: from the table of their outcomes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_BARS = 400
"""The most bars of the timeline. With more shards a bar is several shards that one worker scored after each other."""

MAX_WORKERS = 40
"""The most workers with bars of their own: those that scored the longest."""

SLOW_S, SLOW_TIMES = 1.0, 5.0
"""A shard is slow that took at least so many seconds, and so many times as long as most of the others."""

_SPANS = 60
"""The spans of time in which the throughput is counted."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Shards that a worker scored after each other. begin, end: seconds since the first shard began."""

    worker: str
    begin: float
    end: float
    shards: int
    rows: int


@dataclass(frozen=True, slots=True)
class WorkerTime:
    """What one worker did. seconds: its attempts together."""

    worker: str
    shards: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SlowShard:
    """A shard that kept its worker much longer than the others did. others_s: the median of these."""

    shard: str
    seconds: float
    others_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTimes:
    """The shards that were scored for this revision; those that were taken over from an earlier one do not count.

    began: of the first, in seconds since 1970. seconds: from there to the end of the last. shard_seconds: of all shards
    together. workers: how many scored. busiest: the first of them, the longest one first. bars: of these, at most
    `MAX_BARS`. spans: the ends of equal spans of time, in seconds since `began`. rows_per_s: in each span, as if the
    rows of a shard were scored evenly. slow: the slowest shard, if it took much longer than the others.
    """

    shards: int = 0
    taken_over: int = 0
    began: float = 0.0
    seconds: float = 0.0
    shard_seconds: float = 0.0
    workers: int = 0
    busiest: tuple[WorkerTime, ...] = ()
    bars: tuple[Bar, ...] = ()
    spans: tuple[float, ...] = ()
    rows_per_s: tuple[float, ...] = ()
    slow: SlowShard | None = None


def shard_times(outcomes: pa.Table) -> ShardTimes:
    """The times of all committed shards. outcomes: as `output.outcomes.outcomes`."""
    committed = outcomes.filter(pc.equal(outcomes["status"], "committed"))
    own = pc.fill_null(pc.equal(committed["adopted_from"], ""), True)
    scored = committed.filter(own).select(["worker", "started_at", "seconds", "rows_in", "shard"])
    taken_over = committed.num_rows - scored.num_rows
    if not scored.num_rows:
        return ShardTimes(taken_over=taken_over)
    names = np.array(scored["worker"].to_pylist(), dtype=object)
    begin, seconds, rows = (scored[name].to_numpy().astype(float) for name in ("started_at", "seconds", "rows_in"))
    began = float(begin.min())
    begin -= began
    end = begin + seconds
    order = np.lexsort((begin, names))
    workers, first, counts = np.unique(names[order], return_index=True, return_counts=True)
    whose = np.repeat(np.arange(len(workers)), counts)
    busy = np.bincount(whose, seconds[order])
    longest = [int(each) for each in np.argsort(-busy, kind="stable")[:MAX_WORKERS]]
    each_of = [order[first[one] : first[one] + counts[one]] for one in longest]
    spans, speed = _throughput(begin, end, rows)
    return ShardTimes(
        shards=scored.num_rows,
        taken_over=taken_over,
        began=began,
        seconds=round(float(end.max()), 3),
        shard_seconds=round(float(seconds.sum()), 3),
        workers=len(workers),
        busiest=tuple(
            WorkerTime(str(workers[one]), len(its), int(rows[its].sum()), round(float(busy[one]), 3))
            for one, its in zip(longest, each_of, strict=True)
        ),
        bars=tuple(
            bar
            for one, its in zip(longest, each_of, strict=True)
            for bar in _bars(str(workers[one]), begin[its], end[its], rows[its], sum(map(len, each_of)))
        ),
        spans=spans,
        rows_per_s=speed,
        slow=_slow(scored["shard"], _own(names, begin, end)),
    )


def _own(names: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The seconds of each shard after its worker had ended the one before: a shard that is begun early waits for it."""
    order = np.lexsort((end, names))
    before = np.concatenate([[0.0], np.where(names[order][1:] == names[order][:-1], end[order][:-1], 0.0)])
    own = np.empty(len(end))
    own[order] = end[order] - np.maximum(begin[order], before)
    return own


def _slow(shards: pa.ChunkedArray, seconds: np.ndarray) -> SlowShard | None:
    if len(seconds) < 2:
        return None
    at = int(seconds.argmax())
    longest, others = float(seconds[at]), float(np.median(np.delete(seconds, at)))
    if longest < max(SLOW_S, SLOW_TIMES * others):
        return None
    return SlowShard(shards[at].as_py(), round(longest, 3), round(others, 3))


def _bars(worker: str, begin: np.ndarray, end: np.ndarray, rows: np.ndarray, of_all: int) -> list[Bar]:
    """The bars of one worker, whose shards come in the order in which they began. of_all: the shards of all bars."""
    many = len(begin) if of_all <= MAX_BARS else max(1, len(begin) * (MAX_BARS - MAX_WORKERS) // of_all)
    return [
        Bar(
            worker,
            round(float(begin[part].min()), 3),
            round(float(end[part].max()), 3),
            len(part),
            int(rows[part].sum()),
        )
        for part in np.array_split(np.arange(len(begin)), many)
    ]


def _throughput(begin: np.ndarray, end: np.ndarray, rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The ends of the spans, and the rows per second in each."""
    last = float(end.max())
    if last <= 0:
        return (), ()
    edges = np.linspace(0, last, _SPANS + 1)
    took = np.maximum(end - begin, 1e-9)
    done = np.array([float((rows * np.clip((edge - begin) / took, 0, 1)).sum()) for edge in edges])
    speed = np.diff(done) / np.diff(edges)
    return tuple(round(float(edge), 3) for edge in edges[1:]), tuple(round(float(each), 1) for each in speed)
