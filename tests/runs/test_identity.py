"""Promise 4: whatever can change an output makes results new, whatever cannot leaves them; nothing old is reused.

Every test looks at the values readers see, not only at what was counted.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps as run
from faults import FaultyStorage, fail
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import Denied, GateFailed, JobError, RunFailed, ShardsFailed, Transient
from nightjar.inference.history.run_status import list_runs
from nightjar.inference.run.results import Scored
from nightjar.inference.storage.lake import LakeStorage
from publishing import roll_back
from support import Lake, Ran, data_files


def published_files(lake: Lake, run_id: str | None = None) -> dict[str, str]:
    """What `nightjar files` lists, with the hash of each file's bytes."""
    request = lake.request(scores=False)
    names = data_files(request.storage, request.output, run_id)
    return {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in names}


def scores(lake: Lake, run_id: str | None = None) -> dict[int, float]:
    rows = lake.published(run_id)
    return dict(zip(rows["id"].tolist(), rows["score"].tolist(), strict=True))


def fresh_shards(scored: Scored) -> int:
    """How many shards were scored, not taken over."""
    return scored.progress.shards - scored.progress.reused_shards


# ---- what changes an output ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A job whose every ingredient shows in its scores: score = (a - 2·b)·weight + factor + offset + bias."""

    weight: int = 1
    factor: int = 10
    offset: int = 100
    shift: int = 0
    bias: int = 1000
    features: tuple[str, ...] = ("x", "y")
    carry: tuple[str, ...] = ("id",)
    version: str = "1"
    batch_rows: int = 256

    def write(self, lake: Lake) -> None:
        lake.write_job(
            model={
                "uses": "model:Predictor",
                "path": "weights/",
                "version": self.version,
                "features": list(self.features),
                "outputs": {"score": "float32"},
                "options": {"since": dt.date(2026, 1, 2), "bias": self.bias},  # as YAML has them, and in their order
                "batch_size": self.batch_rows,
            },
            preprocess="prep:shifted",
            carry=list(self.carry),
        )
        write(lake.folder / "weights" / "weight.txt", str(self.weight))
        write(lake.folder / "helpers" / "deep.py", f"OFFSET = {self.offset}\n")
        write(lake.folder / "helpers" / "__init__.py", "from helpers.deep import OFFSET\n")
        write(lake.folder / "prep.py", PREP.format(shift=self.shift))
        write(lake.folder / "model.py", MODEL.format(factor=self.factor))

    def expected(self, ids: np.ndarray) -> dict[int, float]:
        columns = {"x": ids + self.shift, "y": ids % 7}
        first, second = (columns[name] for name in self.features)
        values = (first - 2 * second) * self.weight + self.factor + self.offset + self.bias
        return dict(zip(ids.tolist(), values.astype(np.float32).tolist(), strict=True))


MODEL = """
from pathlib import Path

class Predictor:
    def __init__(self, path, bias, since):
        assert since.year == 2026
        self.weight, self.bias = int(Path(path, "weight.txt").read_text()), bias

    def __call__(self, batch):
        import helpers
        first, second = batch.values()
        return {{"score": (first - 2 * second) * self.weight + {factor} + helpers.OFFSET + self.bias}}
"""

PREP = """
def shifted(batch):
    return {{**batch, "x": batch["x"] + {shift}}}
"""


def write(path: Path, text: str) -> None:
    """Like an editor: the file is another, its length may be the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


Change = Callable[[Recipe], Recipe]

CHANGES: dict[str, Change] = {
    "a model file": lambda recipe: replace(recipe, weight=2),
    "the predictor's code": lambda recipe: replace(recipe, factor=20),
    "a module the predictor imports": lambda recipe: replace(recipe, offset=200),
    "the preprocess module": lambda recipe: replace(recipe, shift=1),
    "the options": lambda recipe: replace(recipe, bias=2000),
    "the feature list": lambda recipe: replace(recipe, features=("y", "x")),
    "the carry list": lambda recipe: replace(recipe, carry=("name", "id")),
    "model.version": lambda recipe: replace(recipe, version="2"),
    "the batch size": lambda recipe: replace(recipe, batch_rows=100),
}
IDS = np.arange(2000)


class Kitchen(Lake):
    """Two files of one shard each. Each test changes one thing more: a run costs seconds."""

    recipe = Recipe()


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Kitchen:
    lake = Kitchen(tmp_path_factory.mktemp("kitchen"), LOCAL)
    write_numbers(lake, "a.parquet", 0)
    write_numbers(lake, "b.parquet", 1000)
    return lake


@pytest.fixture
def cooked(kitchen: Kitchen) -> Kitchen:
    """What readers see is what the current recipe makes, also where the test before failed half-way."""
    kitchen.recipe.write(kitchen)
    kitchen.run()
    assert scores(kitchen) == kitchen.recipe.expected(IDS)
    return kitchen


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_can_alter_outputs_scores_everything_again(cooked: Kitchen, what: str) -> None:
    """And readers see the new values; the earlier publication's files stay, byte for byte, and can be gone back to."""
    before, number, recipe = published_files(cooked), cooked.snapshot().number, cooked.recipe
    cooked.recipe = CHANGES[what](recipe)
    cooked.recipe.write(cooked)
    ran = cooked.run()
    assert (fresh_shards(ran.scored), ran.scored.progress.shards) == (2, 2)
    assert ran.publication.number == number + 1
    assert scores(cooked) == cooked.recipe.expected(IDS)
    after = published_files(cooked)
    assert not after.keys() & before.keys()
    check_rollback(cooked, number, before, recipe)
    check_rollback(cooked, number + 1, after, cooked.recipe)


def check_rollback(lake: Lake, number: int, files: dict[str, str], recipe: Recipe) -> None:
    request = lake.request(scores=False)
    roll_back(request.storage, request.output, number)
    assert published_files(lake) == files
    assert scores(lake) == recipe.expected(IDS)


def test_a_model_changed_in_mid_run_leaves_nothing_of_the_old_one(lake: Lake) -> None:
    """A run that was not finished continues with the new model: what the old one had committed is scored again."""
    Recipe().write(lake)
    ids = write_numbers(lake, "a.parquet", 0), write_numbers(lake, "b.parquet", 1000)
    write(lake.folder / "data" / "c.parquet", "broken")
    with pytest.raises(ShardsFailed):
        lake.run()
    (lake.folder / "data" / "c.parquet").unlink()
    changed = replace(Recipe(), weight=3)
    changed.write(lake)
    ran = lake.run()
    assert (ran.scored.revision, ran.scored.progress.reused_shards) == (1, 0)
    assert scores(lake) == changed.expected(np.concatenate(ids))


BESIDE = """
import json
from pathlib import Path

class Predictor:
    def __init__(self):
        self.weight = json.loads(Path(__file__).with_name("weight.json").read_text())

    def __call__(self, batch):
        return {"score": batch["x"] * self.weight}
"""


def test_a_model_that_the_predictor_finds_by_itself_is_never_mixed(lake: Lake) -> None:
    """Sidecar the code, without `model.path`: what the old one had committed is scored again, and why is said."""
    lake.write_model(BESIDE)
    lake.ready(model__uses="model:Predictor", input__shard_rows=1000)
    write(lake.folder / "weight.json", "2")
    write(lake.folder / "data" / "part-01b.parquet", "broken")
    with pytest.raises(ShardsFailed):
        lake.run()
    (lake.folder / "data" / "part-01b.parquet").unlink()
    write(lake.folder / "weight.json", "-2")
    ran = lake.run()
    assert scores(lake) == {i: -2.0 * i for i in range(8000)}
    assert ran.scored.again == ("weight.json changed: 8 of 8 shards are scored",)
    write(lake.folder / "weight.json", "3")
    assert not lake.run().scored.finished
    assert scores(lake) == {i: 3.0 * i for i in range(8000)}


EDITED = """
from pathlib import Path

import numpy as np

WEIGHTS = np.memmap(Path(__file__).with_name("weights.json"), dtype="uint8", mode="r")

def score(batch):
    import late
    if batch["x"][0] >= 2000:
        live = Path(__LIVE__)
        (live / "late.py").write_text("FACTOR = 1000\\n")
        (live / "weights.json").write_bytes(b"\\x09")
    return {"score": batch["x"] * late.FACTOR * WEIGHTS[0]}
"""


def test_editing_in_mid_run_changes_nothing_of_the_run(lake: Lake) -> None:
    """Neither a module that another actor imports later nor weights that are mapped: all score with the snapshot."""
    lake.write_model(EDITED)
    lake.ready(model__batch_size=1000, resources__actors=2)
    write(lake.folder / "late.py", "FACTOR = 2\n")
    (lake.folder / "weights.json").write_bytes(b"\x03")
    lake.run()
    assert (lake.folder / "late.py").read_text() == "FACTOR = 1000\n", "it was edited"
    assert scores(lake) == {i: 6.0 * i for i in range(8000)}
    again = lake.run()
    assert scores(lake) == {i: 9000.0 * i for i in range(8000)}
    assert again.scored.again == ("late.py changed, weights.json changed: 8 of 8 shards are scored",)


def test_a_run_whose_installed_package_changed_in_mid_run_is_not_published(lake: Lake) -> None:
    """Looked at once more when all is scored: a package is read where it is installed."""
    request = lake.ready().request()
    found = run.discover(request)
    scored = run.score(request, found)
    began = replace(request, scoring=replace(request.scoring, packages={"numpy": "another one"}))
    with pytest.raises(RunFailed, match="the installed package 'numpy' changed while the run went on"):
        run.validate(began, scored, found)
    assert not list(lake.revision().glob("manifest*"))


def write_numbers(lake: Lake, name: str, first: int) -> np.ndarray:
    ids = np.arange(first, first + 1000)
    table = pa.table({"id": ids, "x": ids.astype(np.float32), "y": (ids % 7).astype(np.int32), "name": ids.astype(str)})
    (lake.folder / "data").mkdir(exist_ok=True)
    pq.write_table(table, lake.folder / "data" / name, row_group_size=500)
    return ids


# ---- the input ----------------------------------------------------------------------------------------------


def test_changed_new_and_deleted_files_cost_only_their_own_shards(lake: Lake) -> None:
    """The rest is adopted, byte for byte; a result of the old file is never read again; nothing earlier is touched."""
    lake.ready()
    history = [published(lake, lake.run())]
    assert scores(lake) == {i: 2.0 * i for i in range(8000)}

    lake.write_file("part-01.parquet", 100_000, 2000)
    changed = lake.run()
    assert fresh_shards(changed.scored) == 2
    history.append(published(lake, changed))
    kept = [i for i in range(8000) if not 2000 <= i < 4000]
    assert scores(lake) == {i: 2.0 * i for i in [*kept, *range(100_000, 102_000)]}
    old, new = (set(files.values()) for _, files in history)
    assert len(old & new) == 6, "the other six parts are the same bytes"

    lake.write_file("part-04.parquet", 8000, 1000)
    added = lake.run()
    assert fresh_shards(added.scored) == 1
    history.append(published(lake, added))
    assert len(scores(lake)) == 9000

    (lake.folder / "data" / "part-00.parquet").unlink()
    deleted = lake.run()
    assert fresh_shards(deleted.scored) == 0
    history.append(published(lake, deleted))
    assert min(scores(lake)) == 4000

    for number, files in history:
        request = lake.request(scores=False)
        roll_back(request.storage, request.output, number)
        assert published_files(lake) == files, f"publication {number} is as it was"


def published(lake: Lake, ran: Ran) -> tuple[int, dict[str, str]]:
    return ran.publication.number, published_files(lake)


def test_a_file_rewritten_with_the_same_size_is_another_file(lake: Lake) -> None:
    """Same name, rows and bytes: only the time of writing, or the etag, tells."""
    path = lake.write_file("a.parquet", 0, 100)
    lake.write_model()
    lake.write_job()
    lake.run()
    before = path.stat()
    table = pq.read_table(path)
    x = pa.array(np.roll(table["x"].to_numpy(), 1))
    pq.write_table(table.set_column(1, "x", x), path, row_group_size=1000)
    if path.stat().st_mtime_ns == before.st_mtime_ns:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert path.stat().st_size == before.st_size, "the test means files that only differ within"
    lake.run()
    assert scores(lake) == {i: 2.0 * ((i - 1) % 100) for i in range(100)}


def test_a_file_rewritten_with_its_size_and_time_kept_is_another_file(lake: Lake) -> None:
    """As some tools copy. Hard links and new permissions cost the shard another time, and nothing else."""
    lake.write_file("b.parquet", 1000, 100)
    path = lake.write_file("a.parquet", 0, 100)
    lake.write_model()
    lake.write_job(input__shard_rows=100)
    lake.run()
    before = path.stat()
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "x", pa.array(np.roll(table["x"].to_numpy(), 1))), path, row_group_size=1000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    ran = lake.run()
    assert ran.scored.again == ("a.parquet changed: 1 of 2 shards is scored",)
    assert {i: score for i, score in scores(lake).items() if i < 100} == {i: 2.0 * ((i - 1) % 100) for i in range(100)}


# ---- what cannot change an output ---------------------------------------------------------------------------


def test_a_job_change_that_cannot_alter_outputs_scores_nothing(lake: Lake) -> None:
    """Retries, resources, shard size and the predictor's file times: the run stays finished."""
    lake.ready(checks=[{"column": "score", "min": 0}])
    lake.run()
    before = published_files(lake)
    lake.write_model()
    lake.write_job(
        checks=[{"column": "score", "min": 0}],
        retry={"attempts": 5, "backoff_s": 1, "stall_s": 60},
        resources={"actors": {"min": 1, "max": 2}, "cpus": 0.5},
        input__shard_rows=500,
        input__format="parquet",
    )
    again = lake.run()
    assert again.scored.finished
    assert fresh_shards(again.scored) == 0
    assert published_files(lake) == before
    assert not lake.revision(2).exists()


def test_a_limit_relaxed_after_a_failed_gate_publishes_without_scoring(lake: Lake) -> None:
    """Checks' limits are compared with what is committed: a wrong limit costs no GPU hour."""
    lake.ready(checks=[{"column": "score", "max": 10}])
    with pytest.raises(GateFailed):
        lake.run()
    lake.write_job(checks=[{"column": "score", "max": 1e9}])
    ran = lake.run()
    assert (fresh_shards(ran.scored), ran.scored.revision, ran.publication.number) == (0, 1, 1)
    assert len(scores(lake)) == 8000


def test_a_published_night_is_judged_again_by_changed_checks(lake: Lake) -> None:
    """Nothing is scored. If a gate refuses the night, readers keep the old one."""
    lake.ready(checks=[{"column": "score", "max": 1e9}])
    lake.run()
    before = published_files(lake)
    lake.write_job(checks=[{"column": "score", "max": 10}])
    with pytest.raises(GateFailed):
        lake.run()
    assert published_files(lake) == before
    lake.write_job(checks=[{"column": "score", "max": 1e8}])
    ran = lake.run()
    assert (fresh_shards(ran.scored), ran.scored.revision, ran.publication.number) == (0, 2, 2)
    assert lake.run().scored.finished


def test_a_first_check_on_an_output_of_floats_scores_nothing(lake: Lake) -> None:
    """Its figures are there without a check, and the run says why there is another revision."""
    lake.ready().run()
    lake.write_job(checks=[{"column": "score", "max": 1e9}])
    ran = lake.run()
    assert (fresh_shards(ran.scored), ran.scored.revision, ran.publication.number) == (0, 2, 2)
    assert ran.scored.again == ("checks, or their code or limits, changed since r1, so the run is judged again",)


@pytest.fixture
def unfinished(lake: Lake) -> Lake:
    """A run of five files of which one could not be read, and is repaired now."""
    lake.write_files(files=5, row_group=250)
    lake.write_model()
    lake.write_job(input__shard_rows=None)
    whole = (lake.folder / "data" / "part-04.parquet").read_bytes()
    (lake.folder / "data" / "part-04.parquet").write_bytes(whole[:-1])
    with pytest.raises(ShardsFailed):
        lake.run()
    (lake.folder / "data" / "part-04.parquet").write_bytes(whole)
    return lake


def test_other_actors_and_shard_sizes_keep_what_an_unfinished_run_has_committed(unfinished: Lake) -> None:
    """The default shard size follows from the number of actors; boundaries already planned stay."""
    committed = {record["shard"] for record in unfinished.records() if record["t"] == "receipt"}
    assert committed
    unfinished.write_job(input__shard_rows=None, resources__actors=2)
    ran = unfinished.run()
    assert (ran.scored.revision, ran.scored.progress.reused_shards) == (1, len(committed))
    by_shard = [record["shard"] for record in unfinished.records() if record["t"] == "receipt"]
    sizes = {record["rows_in"] for record in unfinished.records() if record["t"] == "receipt"}
    assert len(sizes) > 1, "the test means two sizes of shards"
    assert len(by_shard) == len(set(by_shard)), "nothing is scored twice"
    assert scores(unfinished) == {i: 2.0 * i for i in range(10_000)}


# ---- asked for ----------------------------------------------------------------------------------------------


def test_fresh_scores_everything_again_as_a_new_revision(lake: Lake) -> None:
    """Though nothing changed; and the earlier revision stays as it was."""
    lake.ready()
    lake.run()
    before = published_files(lake)
    ran = lake.run(fresh=True)
    assert (fresh_shards(ran.scored), ran.scored.revision, ran.publication.number) == (8, 2, 2)
    after = published_files(lake)
    assert not after.keys() & before.keys()
    request = lake.request(scores=False)
    roll_back(request.storage, request.output, 1)
    assert published_files(lake) == before


def test_fresh_is_not_forgotten_when_the_storage_fails_between_the_two_revisions(lake: Lake) -> None:
    """The unfinished revision is left, and the step is repeated by its flow run because the new one could not begin."""
    lake.ready()
    away = FaultyStorage(LakeStorage(), [fail("write", "*/data/*", nth=3, error=Denied("no"))])
    with pytest.raises(RunFailed):
        lake.run(storage=away, flow_run="first")
    away = FaultyStorage(LakeStorage(), [fail("create", "*/r2/ledger/*", nth=None, error=Transient("away"))])
    with pytest.raises(Transient):
        lake.run(storage=away, fresh=True, flow_run="second")
    ran = lake.run(fresh=True, flow_run="second")
    assert (ran.scored.revision, fresh_shards(ran.scored)) == (2, 8)


def test_a_published_night_that_was_deleted_can_be_scored_again(lake: Lake) -> None:
    """Under a revision that readers have not seen yet; a second publication of r1 would be refused."""
    lake.ready().run()
    lake.run(fresh=True)
    shutil.rmtree(lake.revision(1).parent)
    again = lake.run()
    assert (again.scored.revision, again.scored.progress.reused_shards, again.publication.number) == (3, 0, 3)
    assert lake.published()["id"].tolist() == list(range(8000))


def test_a_run_told_not_to_publish_is_published_later_without_scoring(lake: Lake) -> None:
    lake.ready()
    held_back = lake.run(publish=False)
    assert (held_back.publication.number, lake.snapshot().number) == (0, 0)
    with pytest.raises(JobError, match="nothing is published in"):
        published_files(lake)
    ran = lake.run()
    assert (fresh_shards(ran.scored), ran.scored.revision, ran.publication.number) == (0, 1, 1)
    assert scores(lake) == {i: 2.0 * i for i in range(8000)}


def test_a_limited_run_is_scored_and_never_published(lake: Lake) -> None:
    """It has an id of its own, so that tonight's run is not disturbed; asked for by name it is still not published."""
    lake.ready()
    ran = lake.run(limit=2500)
    assert (ran.scored.progress.shards, ran.scored.progress.counts.rows_out, ran.publication.number) == (3, 3000, 0)
    assert lake.revision(1, "2026-11-19-limit-2500").exists()
    assert not lake.revision(1).exists()
    named = lake.run(limit=1000, run_id="trial")
    assert (named.scored.progress.shards, named.publication.number) == (1, 0)
    with pytest.raises(JobError, match="nothing is published in"):
        published_files(lake)
    again = lake.run(run_id="trial")
    assert (again.scored.progress.shards, again.publication.number) == (1, 0), "a taste stays one, whoever continues it"
    more = lake.run(limit=2500, run_id="trial")
    assert (more.scored.progress.shards, more.publication.number) == (3, 0)
    request = lake.request(run_id="trial")
    (line,) = (each for each in list_runs(request) if each.run_id == "trial")
    assert (line.shards, line.rows, line.done_shards, line.rows_out) == (3, 3000, 3, 3000), "not the first limit's"


def test_the_date_chooses_input_and_model_and_a_named_run_remembers_its_own(lake: Lake) -> None:
    """A backfill continued after midnight, or by somebody who forgot --date, still means the same night."""
    for day in ("18", "19", "20"):
        lake.write_file(f"2026/11/{day}/a.parquet", int(day) * 1000, 100)
        write(lake.folder / "models" / f"2026-11-{day}.txt", day)
    lake.write_model("def score(batch, path):\n    return {'score': batch['x'] * 0 + int(open(path).read())}\n")
    lake.write_job(input__uri="data/{date:%Y/%m/%d}/", model__path="models/{date}.txt")
    lake.run(date="2026-11-18", run_id="backfill")
    lake.run(date="2026-11-19")
    assert scores(lake, "backfill") == dict.fromkeys(range(18_000, 18_100), 18.0)
    assert scores(lake, "2026-11-19") == dict.fromkeys(range(19_000, 19_100), 19.0)
    assert lake.snapshot().latest() == "2026-11-19", "a backfill never rewinds the latest night"
    again = lake.request(date=None, run_id="backfill")
    assert again.date == "2026-11-18"
    assert again.job.input.uri.endswith("data/2026/11/18/")
    assert run.score(again, run.discover(again)).finished
    other = lake.request(date="2026-11-20", run_id="backfill")
    with pytest.raises(JobError, match=r"--date 2026-11-20: the run 'backfill' is of 2026-11-18; choose another"):
        run.discover(other)
