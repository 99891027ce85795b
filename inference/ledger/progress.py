"""How far a run is, folded from ledger records: the same figures for the display, the artifacts and the API."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Progress:
    """Totals of a run. Rows of shards whose file could not be read are not in `rows`.

    uncounted: planned shards whose rows are not known before they are read; of those, `rows` has what was read so far.

    cuts: batches that raised and were scored in parts, of every shard that is done, whichever command scored it.
    step: what is being done: plan, load, score, validate, publish. writer: the nonce of who does it.
    """

    shards: int = 0
    rows: int = 0
    done_shards: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    reused_shards: int = 0
    reused_rows: int = 0
    retries: int = 0
    cuts: int = 0
    failed_attempts: int = 0
    deaths: int = 0
    first_start: float = 0.0
    last_end: float = 0.0
    step: str = ""
    writer: str = ""
    uncounted: int = 0

    def fold(self, record: dict[str, Any]) -> None:
        """Count one ledger record."""
        kind = record["t"]
        if kind == "planned":
            self._plan(record)
        elif kind == "receipt":
            self._receipt(record)
        elif kind == "failed":
            self.failed_attempts += 1
            self.deaths += bool(record["died"])
        elif kind == "revoked":
            self.done_shards -= 1
            self.rows_out -= record["rows_out"]
            self.rows_quarantined -= record["rows_quarantined"]
            self.cuts -= record.get("cuts", 0)  # ledgers of before do not count them again
            self.failed_attempts += 1
        elif kind == "split":
            self.shards += record["into"] - 1
        elif kind == "opened":
            self._open(record["writer"])
        elif kind == "doing":
            self.step = record["step"]

    def _open(self, writer: dict[str, Any]) -> None:
        """A step begins. What earlier commands scored is taken over by one that scores: speed and times are its own."""
        self.step, self.writer = writer["task"], writer["nonce"]
        if self.step == "score":
            self.step = "plan"
            self.reused_shards, self.reused_rows = self.done_shards, self.rows_out + self.rows_quarantined
            self.first_start = self.last_end = 0.0

    def _plan(self, record: dict[str, Any]) -> None:
        totals = {name: record[name] for name in ("shards", "rows", "done_shards", "rows_out", "rows_quarantined")}
        # What failed under an earlier plan failed all the same.
        kept = Progress(step=self.step, writer=self.writer, failed_attempts=self.failed_attempts, deaths=self.deaths)
        later = {"cuts": record.get("cuts", self.cuts), "uncounted": record.get("uncounted", 0)}
        self.__dict__.update(asdict(kept) | totals | later)
        self._count()
        self.reused_shards = self.done_shards
        self.reused_rows = self.rows_out + self.rows_quarantined

    def _receipt(self, record: dict[str, Any]) -> None:
        self.done_shards += 1
        self.rows_out += record["rows_out"]
        self.rows_quarantined += record["rows_quarantined"]
        self.cuts += record.get("cuts", 0)  # receipts of before have none
        self._count()
        if record["adopted_from"]:
            self.reused_shards += 1
            self.reused_rows += record["rows_in"]
            return
        if self.step in ("plan", "load"):  # ledgers of before do not say that it began
            self.step = "score"
        self.retries += record["retries"]
        started = record["started_at"]
        self.first_start = min(self.first_start or started, started)
        self.last_end = max(self.last_end, started + record["seconds"])

    def _count(self) -> None:
        if self.uncounted:
            self.rows = max(self.rows, self.rows_out + self.rows_quarantined)

    @property
    def counted(self) -> bool:
        """Whether `rows` are all rows of the run: from the beginning, or once every shard is read."""
        return not self.uncounted or self.done_shards >= self.shards

    @property
    def scored_rows(self) -> int:
        """Rows scored now, without those taken over."""
        return self.rows_out + self.rows_quarantined - self.reused_rows

    @property
    def steady_s(self) -> float:
        """Seconds from the first shard's start to the last one's end."""
        return max(0.0, self.last_end - self.first_start)

    @property
    def rows_per_s(self) -> float:
        """Rows scored per second in steady state; 0 before there is a figure."""
        return self.scored_rows / self.steady_s if self.steady_s > 0 else 0.0

    def remaining_s(self, now: float | None = None) -> float | None:
        """Seconds until every row is scored at the present speed; None while unknown.

        Where rows are not counted, shards are, which are of about as many bytes each.
        """
        if not self.rows_per_s:
            return None
        left = (self.rows - self.rows_out - self.rows_quarantined) / self.rows_per_s
        if not self.counted:
            scored = max(1, self.done_shards - self.reused_shards)
            left = (self.shards - self.done_shards) * self.steady_s / scored
        return max(0.0, left - max(0.0, (now or time.time()) - self.last_end))
