"""With `reuse: rows`, killed at random, changed and pruned: readers of every night see what scored it then."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import Missing
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import published
from nightjar.inference.validation.manifest import Manifest, read_manifest
from outputs import aged
from support import Lake
from victim import killed_at_random

ROUNDS = 200
NIGHTS = [f"2026-11-{day}" for day in range(16, 21)]
KEEP = 3
FILES, ROWS = 4, 1000
MODEL = "FACTOR = {factor}\n\ndef score(batch):\n    return {{'score': batch['x'] * FACTOR}}\n"
SCORES = {"uses": "model:score", "features": ["x"], "outputs": {"score": "float64"}, "batch_size": 256}
RUN = """
import sys
from support import run_steps
from nightjar.inference.engine import LOCAL
from nightjar.inference.run.request import fixed, make_request
run_steps(fixed(make_request(sys.argv[1], date=sys.argv[2], engine=LOCAL)))
"""
PRUNE = """
import sys
from nightjar.inference.history.retention import prune
from nightjar.inference.run.request import make_request
prune(make_request(sys.argv[1], date="2026-11-20"), int(sys.argv[2]))
"""


class Nights:
    """A lake that changes between the runs of five nights."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.random, self.rng = lake, random.Random(seed), np.random.default_rng(seed)
        # What a night may show: what its last complete run published, and what was asked of it since.
        self.nights: dict[str, list[pd.DataFrame]] = {date: [] for date in NIGHTS}
        self.factor, self.next_id = 1, 0
        self.files: dict[str, pd.DataFrame] = {}
        self.counts: Counter[str] = Counter()
        lake.write_model(MODEL.format(factor=1))
        lake.write_job(model=SCORES, carry=["id", "x"], input__shard_rows=500, reuse="rows", rescore={"share": 0.05})
        for name in range(FILES):
            self._write(f"part-{name}.parquet", self._rows(ROWS))

    def change(self) -> None:
        """Change rows, files, the model, or nothing."""
        chosen = self.random.choice([self.values, self.values, self.shuffle, self.more, self.model, self.nothing])
        self.counts[chosen.__name__] += 1
        chosen()

    def values(self) -> None:
        """1 % of the rows of a file change."""
        name = self.random.choice(list(self.files))
        rows = self.files[name].copy()
        rows.loc[self.rng.choice(len(rows), len(rows) // 100, replace=False), "x"] += 0.5
        self._write(name, rows)

    def shuffle(self) -> None:
        """The rows of all files go to other places."""
        rows = pd.concat(self.files.values()).sample(frac=1, random_state=self.random.randrange(1 << 30))
        for name, part in zip(self.files, np.array_split(np.arange(len(rows)), FILES), strict=True):
            self._write(name, rows.iloc[part])

    def more(self) -> None:
        """A file gets new rows and loses some."""
        name = self.random.choice(list(self.files))
        self._write(name, pd.concat([self.files[name].iloc[20:], self._rows(20)]))

    def model(self) -> None:
        self.factor += 1
        self.lake.write_model(MODEL.format(factor=self.factor))

    def nothing(self) -> None:
        pass

    def _rows(self, count: int) -> pd.DataFrame:
        ids = np.arange(self.next_id, self.next_id + count)
        self.next_id += count
        return pd.DataFrame({"id": ids, "x": ids.astype(np.float64) % 1500})  # some rows are equal

    def _write(self, name: str, rows: pd.DataFrame) -> None:
        self.files[name] = rows.reset_index(drop=True)
        (self.lake.folder / "data").mkdir(exist_ok=True)
        table = pa.Table.from_pandas(self.files[name], preserve_index=False)
        pq.write_table(table, self.lake.folder / "data" / name, row_group_size=500)

    def run(self) -> None:
        """Run a night, which may be killed."""
        date = self.random.choice(NIGHTS)
        rows = pd.concat(self.files.values())
        asked = rows.assign(score=rows["x"] * self.factor).sort_values("id", ignore_index=True)
        self.nights[date].append(asked)
        if self._command(RUN, date):
            self.nights[date] = [asked]

    def prune(self) -> None:
        """Delete old nights, which may be killed, too: each is gone or there whole."""
        aged(self.lake.out, KEEP + 1)
        before = set(self._shown())
        self._command(PRUNE, str(KEEP))
        self.counts["pruned"] += len(before - set(self._shown()))

    def _command(self, steps: str, word: str) -> bool:
        """Do this in a process of its own, which is killed at random; whether it came to its end."""
        words = self.lake.job_path, word
        code, said = killed_at_random(steps, *words, random=self.random, chance=0.4, within_s=(1, 5))
        self.counts[f"ended with {code}"] += 1
        if code == 1 and "scores these" in said:  # the night that rows were taken from was deleted
            self.counts["sources deleted"] += 1
            return False
        assert code in (0, -9), said[-3000:]
        return code == 0

    def check(self) -> None:
        """What readers see of every night equals what its run had to compute, and its manifest says where from."""
        for date, entry in self._shown().items():
            request = self.lake.request()
            manifest = read_manifest(request.storage, request.output, entry)
            files = published(request.storage, request.output, date).uris
            rows = pd.concat([pd.read_parquet(file, columns=["id", "x", "score"]) for file in files])
            rows = rows.sort_values("id", ignore_index=True)
            assert any(rows.equals(each) for each in self.nights[date]), f"{date} shows other rows"
            self._count(manifest, rows)

    def _count(self, manifest: Manifest, rows: pd.DataFrame) -> None:
        assert manifest.totals.rows_out == len(rows)
        reused = sum(each.rows for each in manifest.reused)
        assert 0 <= reused <= len(rows)
        self.counts["nights with reused rows"] += reused > 0
        self.counts["nights with reused shards"] += any(each.shards for each in manifest.reused)

    def _shown(self) -> dict[str, Published]:
        request = self.lake.request(scores=False)
        with suppress(Missing):
            return dict(publish.newest(request.storage, request.output).runs)
        return {}


@pytest.mark.long
def test_readers_of_every_night_see_what_scored_it(lake: Lake) -> None:
    seed = int(os.environ.get("NIGHTJAR_SEED", random.randrange(1 << 32)))
    rounds = int(os.environ.get("NIGHTJAR_ROUNDS", ROUNDS))
    print(f"NIGHTJAR_SEED={seed}")
    nights = Nights(lake, seed)
    for number in range(rounds):
        nights.change()
        nights.run()
        nights.check()
        if number % 5 == 4:
            nights.prune()
            nights.check()
    print(dict(nights.counts))
    assert nights.counts["nights with reused rows"], "some night reused rows"
    assert nights.counts["nights with reused shards"], "some night reused shards"
