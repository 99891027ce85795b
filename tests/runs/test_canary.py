"""`canary`: a sample of the shards is scored and judged first, and stops a bad model before the others are scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import GateFailed, ShardsFailed
from nightjar.inference.output import revisions as revs
from support import Lake

RIGHT = "def score(batch):\n    return {'score': batch['x']}\n"
INVERTED = "def score(batch):\n    return {'score': 1 - batch['x']}\n"
SHARDS, ROWS = 100, 50

AUROC = [{"metric": "auroc", "min": 0.72}]


def labelled(lake: Lake, model: str = RIGHT, **changes: object) -> Lake:
    """100 shards of 50 rows; x is between 0 and 1, and labels are likelier where it is greater."""
    random = np.random.default_rng(7)
    folder = lake.folder / "data"
    folder.mkdir(parents=True)
    for file in range(5):
        x = random.random(SHARDS * ROWS // 5)
        late = random.random(x.size) < x
        ids = np.arange(x.size) + file * x.size
        table = pa.table({"id": ids, "name": ids.astype(str), "x": x.astype(np.float32), "late": late})
        pq.write_table(table, folder / f"part-{file:02d}.parquet", row_group_size=ROWS)
    lake.write_model(model)
    lake.write_job(**{"input__shard_rows": ROWS, "label": "late", "canary": 0.04, "checks": AUROC, **changes})
    return lake


def committed(lake: Lake) -> int:
    """The shards of the newest revision that have a result."""
    request = lake.request()
    newest = revs.newest_revision(request.storage, request.run_uri)
    assert newest is not None
    return len(newest.state.committed)


def test_a_model_with_inverted_outputs_costs_four_percent_of_the_rows(lake: Lake) -> None:
    with pytest.raises(GateFailed) as failed:
        labelled(lake, INVERTED).run()
    assert str(failed.value).startswith(
        "the canary (4 of 100 shards, 200 rows) stopped the run before the other shards: "
        "Canary: The auroc of 'score' against 'late' is 0."
    )
    assert [(gate.name, gate.verdict) for gate in failed.value.gates] == [("auroc.min", "block")]
    assert committed(lake) == 4
    assert lake.snapshot().number == 0


def test_a_good_night_is_published_whole(lake: Lake) -> None:
    """The canary's shards are not scored a second time."""
    done = labelled(lake).run()
    assert done.publication.number == 1
    assert done.scored.progress.done_shards == SHARDS
    assert lake.published()["id"].to_list() == list(range(SHARDS * ROWS))


def test_the_command_repeated_judges_the_same_shards_and_scores_nothing(lake: Lake) -> None:
    with pytest.raises(GateFailed):
        labelled(lake, INVERTED).run()
    with pytest.raises(GateFailed, match=r"the canary \(4 of 100 shards"):
        lake.run()
    assert committed(lake) == 4


def test_once_the_model_is_mended_the_night_is_scored(lake: Lake) -> None:
    with pytest.raises(GateFailed):
        labelled(lake, INVERTED).run()
    lake.write_model(RIGHT)
    assert lake.run().publication.number == 1
    assert np.allclose(lake.published()["score"], pq.read_table(lake.folder / "data")["x"].to_numpy())


def test_without_the_canary_the_same_results_go_on(lake: Lake) -> None:
    """The key says when gates are judged, and not what is scored: no result is thrown away because of it."""
    with pytest.raises(GateFailed):
        labelled(lake, INVERTED).run()
    lake.write_job(input__shard_rows=ROWS, label="late")
    done = lake.run()
    assert (done.publication.number, done.scored.progress.reused_shards) == (1, 4)


def test_one_row_that_breaks_a_limit_suffices_in_any_canary(lake: Lake) -> None:
    """Though one shard alone is too few to judge a share by."""
    changes = {"canary": 0.001, "checks": [{"column": "score", "max": 0.5, "nulls": 0.1}]}
    with pytest.raises(GateFailed, match=r"the canary \(1 of 100 shards, 50 rows\) .*above checks\[0\].max = 0.5"):
        labelled(lake, **changes).run()
    assert committed(lake) == 1


def test_too_small_a_canary_does_not_judge_a_metric_and_says_so(lake: Lake) -> None:
    with pytest.raises(GateFailed, match=r"^The auroc"):
        labelled(lake, INVERTED, canary=0.001).run()
    assert committed(lake) == SHARDS
    request = lake.request()
    newest = revs.newest_revision(request.storage, request.run_uri)
    assert newest is not None
    (note,) = newest.state.about.preflight
    assert note.startswith("canary: it has 1 of 100 shards, too few to judge shares and metrics by")


def test_a_share_that_only_some_shards_break_stops_nothing(lake: Lake) -> None:
    """A quarter of the canary is null, which is one of its four shards, and one of all hundred."""
    beside = lake.folder.parent / f"{lake.folder.name}-first-id"
    model = (
        f"import numpy as np\nfrom pathlib import Path\nLOST = int(Path({str(beside)!r}).read_text())\n"
        "def score(batch):\n"
        "    lost = (batch['id'] >= LOST) & (batch['id'] < LOST + 50)\n"
        "    return {'score': np.where(lost, np.nan, batch['x'])}\n"
    )
    changes = {"checks": [{"column": "score", "nulls": 0.1}], "model__features": ["x", "id"]}
    labelled(lake, model, label=None, **changes)
    plan = lake.planned()
    first = plan.shard(min(plan.ids()))
    assert first is not None
    (piece,) = first.pieces
    beside.write_text(str(int(piece.uri[-9]) * 1000 + piece.first_row))
    done = lake.run()
    assert done.publication.number == 1
    (gate,) = [gate for gate in done.verdict.gates if gate.name == "score.nulls"]
    assert gate.observed == "50 of 5,000 rows"


def test_a_gate_that_only_warns_or_asks_stops_nothing(lake: Lake) -> None:
    done = labelled(lake, INVERTED, checks=[{**AUROC[0], "on_fail": "warn"}]).run()
    assert done.publication.number == 1


def test_a_shard_of_the_canary_that_fails_does_not_keep_the_others_from_being_scored(lake: Lake) -> None:
    """Of eight shards seven are the canary, so it has at least one of two that cannot be read."""
    lake.write_files(files=8, rows=1000)
    lake.write_model()
    lake.write_job(canary=0.85, checks=[{"column": "score", "max": 16000}])
    for name in ("part-02.parquet", "part-05.parquet"):
        (lake.folder / "data" / name).write_bytes(b"no Parquet")
    with pytest.raises(ShardsFailed, match="2 of 8 shards have no result"):
        lake.run()
    assert committed(lake) == 6


@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_canary_of_the_whole_night_is_none(tmp_path: Path, share: float) -> None:
    lake = Lake(tmp_path, "local")
    lake.write_file("only.parquet", 0, 1000)
    lake.write_model()
    lake.write_job(canary=share, checks=[{"column": "score", "max": 10}])
    with pytest.raises(GateFailed, match=r"^The greatest"):
        lake.run()
