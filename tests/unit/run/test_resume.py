"""What a run begins with."""

from __future__ import annotations

from pathlib import Path

import steps as run
from nightjar.inference.engine import LOCAL
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Split
from nightjar.inference.output.revisions import revision_uri
from nightjar.inference.run.request import identity_of
from nightjar.inference.run.resume import plan_in
from support import DOUBLE, Lake


def test_a_plan_has_the_shards_of_the_step_that_follows(tmp_path: Path) -> None:
    """A packed shard that was split stays split, also when the job was changed and changed back since."""
    lake = Lake(tmp_path, LOCAL)
    for index in range(3):
        lake.write_file(f"part-{index:02d}.parquet", index * 100, 100)
    lake.write_model(DOUBLE)
    shards = []
    for version in ("1", "2", "1"):
        lake.write_job(model__version=version)
        request = lake.request()
        found = run.discover(request)
        foreseen = run.plan(request, found).plan
        uri = str(lake.revision())
        writer = open_epoch(request.storage, uri, this_holder("score"), lease_s=3600)
        made = plan_in(request, writer, uri, found, identity_of(request, found.schema), None)
        assert foreseen.ids() == made.ids()
        if not shards:
            writer.append([Split(*made.ids(), "no", 3)])
        writer.stop(release=True)
        shards.append(len(made))
    assert shards == [1, 1, 3]


def test_a_limit_chooses_the_same_shards_after_one_of_them_was_split(tmp_path: Path) -> None:
    """Files that were packed together may have a large one between them."""
    lake = Lake(tmp_path, LOCAL)
    for index in range(7):
        lake.write_file(f"part-{index:02d}.parquet", index * 5000, 5000 if index == 3 else 100)
    lake.write_model(DOUBLE)
    lake.write_job()
    request = lake.request(limit=350)
    found, uri = run.discover(request), revision_uri(request.run_uri, 1)
    identity = identity_of(request, found.schema)
    writer = open_epoch(request.storage, uri, this_holder("score"), lease_s=3600)
    made = plan_in(request, writer, uri, found, identity, None)
    writer.append([Split(*made.ids(), "no", 6)])
    writer.stop(release=True)
    assert set(run.plan(request, found).plan.ids()) == set(made.with_splits(made.ids(), identity.fingerprint)[0].ids())
    scored = run.score(request, found)
    assert run.validate(request, scored, found).published is not None
    assert scored.progress.counts.rows_in == 600
