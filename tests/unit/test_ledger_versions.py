"""Ledgers outlive the version that wrote them: an older one is read and continued, a newer one as far as it is known.

`data/ledger-v1` is what the first version left of a small run, hosts renamed; only its publication has the origin that
it has today. It has a file of two shards and three small ones packed together; one row that could not be scored; one
process that died; one damaged file, for which the packed shard was split, and which was mended before the run was
repeated and published.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nightjar.inference.errors import StorageError
from nightjar.inference.ledger.epochs import LedgerWriter, open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import Ledger, State, replay
from nightjar.inference.ledger.lines import Intent, Published, PublishedAs, decode, encode
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output import outcomes
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.records import (
    Failed,
    Part,
    Receipt,
    Usage,
)
from nightjar.inference.storage.lake import LakeStorage

GOLDEN = Path(__file__).parent.parent / "data" / "ledger-v1"
RUN = "2026-11-19"
FINGERPRINT = "6cf7d256341fa4733dafbb61febf460b0d2f902553ca32bea4e3e47c21fb82e5"
MANIFEST = Published(1, f"runs/{RUN}/r1/manifest-000003.json", "731f7c32c03f4ff05630ed650be07f41", RUN)

FIRST, SECOND = "2208921db3682d64e238", "b56516067c91051b99a0"
PACKED, DAMAGED = "e2ccbc23c554084615ff", "247b7543e2017ece6ba9"
SMALL_A, SMALL_B, SMALL_C = "0ea171f67983eb885167", "3fcfe3b494479e4ef2f7", "396dfafc14bbaf2ab678"
CORRUPT = (
    "/lake/data/small-b.parquet: not a readable Parquet file: Couldn't deserialize thrift: don't know what type: \x0f\n"
    "Deserializing page header failed."
)

SPLIT, MENDED, INTENT, PUBLISHED, SEGMENTS = 7, 13, 17, 18, 19
"""Numbers of the segments in which that happened; and how many there are."""


@pytest.fixture
def left(tmp_path: Path) -> Callable[[int], Path]:
    """The output as it was once so many segments were written."""

    def copy(segments: int) -> Path:
        output = tmp_path / f"after-{segments}"
        shutil.copytree(GOLDEN, output)
        for path in sorted(ledger_of(output).iterdir())[segments:]:
            path.unlink()
        if segments < INTENT:
            shutil.rmtree(output / "publications")
        return output

    return copy


def revision_of(output: Path) -> str:
    return str(output / "runs" / RUN / "r1")


def ledger_of(output: Path) -> Path:
    return Path(revision_of(output), "ledger")


def read(output: Path) -> State:
    return replay(Ledger(LakeStorage(), revision_of(output)))


def receipts(output: Path) -> list[Receipt]:
    return list(Ledger(LakeStorage(), revision_of(output)).receipts(read(output)))


def continued(output: Path) -> LedgerWriter:
    """Whoever wrote has been silent for a whole lease."""
    clock = itertools.count(step=60).__next__
    return open_epoch(LakeStorage(), revision_of(output), this_holder("score"), clock=clock, sleep=lambda _: None)


def finish(output: Path) -> None:
    """What a run that is repeated does to its ledger: commit what the plan lacks, and publish."""
    writer = continued(output)
    try:
        if writer.state.intent is None:
            plan = revs.read_plan(LakeStorage(), revision_of(output), writer.state, FINGERPRINT)
            assert plan is not None
            lacking = [shard for shard in plan.shards() if shard.id not in writer.state.committed]
            records = [
                Receipt(each.id, 1, writer.epoch, "w", each.rows, each.rows, 0, None, None, 0, 0) for each in lacking
            ]
            writer.append(records)
        if writer.state.published is None:
            publish.publish(writer, str(output), RUN, Published(1, "manifest.json", "sum", RUN))
    finally:
        writer.stop(release=True)


def test_a_ledger_of_the_first_version_is_read() -> None:
    """Who wrote when, what failed and was split, what is committed and published: all of it is known today."""
    state = read(GOLDEN)
    assert (state.number, state.epoch, state.holder) == (SEGMENTS, 4, None)
    assert [(epoch, writer.task) for epoch, writer in state.openers] == [
        (1, "score"),
        (2, "score"),
        (3, "validate"),
        (4, "publish"),
    ]
    flow_run = "eafcce1259084a719e5ee8f355acbd08"
    last = f"publish of flow run {flow_run}, process 27537 on night-7, since 2026-11-20T11:35:58+00:00"
    assert str(state.openers[3][1]) == last
    corrupt = Failed(
        PACKED, 1, "InputCorrupt", CORRUPT, True, False, "/lake/data/small-a.parquet", -1, 0, "night-7:27927"
    )
    lost = "the worker night-7:27790 was lost while it worked on this shard"
    assert state.failures == {
        PACKED: [corrupt],
        SECOND: [Failed(SECOND, 1, "ProcessDied", lost, False, True, "", -1, 0, "night-7:27790")],
        DAMAGED: [
            Failed(
                DAMAGED, 1, "InputCorrupt", CORRUPT, True, False, "/lake/data/small-b.parquet", -1, 0, "night-7:27970"
            )
        ],
    }
    assert state.splits == {PACKED: CORRUPT}
    assert state.committed == {FIRST, SECOND, SMALL_A, SMALL_B, SMALL_C}
    assert state.intent is not None
    assert state.intent == Intent(1, MANIFEST)
    assert state.published == PublishedAs(1)
    assert publish.newest(LakeStorage(), str(GOLDEN)).runs == {RUN: MANIFEST}


def test_receipts_of_the_first_version_are_read_whole() -> None:
    """With their parts, by the audit and by everything that adds up what was done."""
    found = {receipt.shard: receipt for receipt in receipts(GOLDEN)}
    assert found[FIRST] == Receipt(
        shard=FIRST,
        attempt=1,
        epoch=1,
        worker="night-7:27790",
        rows_in=1000,
        rows_out=999,
        rows_quarantined=1,
        data=Part(f"data/{FIRST}-000001-bc0af528.parquet", 999, 5862, "33321d163e212940810115373333704d"),
        quarantine=Part(f"quarantine/{FIRST}-000001-264e7a76.parquet", 1, 5150, "20016e92d154d6b2b10ba1c7b89ea78e"),
        seconds=0.039,
        started_at=1795174553.162,
    )
    ledger, state, progress = Ledger(LakeStorage(), revision_of(GOLDEN)), read(GOLDEN), Progress()
    plan = revs.read_plan(LakeStorage(), revision_of(GOLDEN), state, FINGERPRINT)
    assert plan is not None
    assert plan.ids() == [FIRST, SECOND, SMALL_A, SMALL_B, SMALL_C]
    table = outcomes.outcomes(plan, ledger, state)
    assert outcomes.missing(table) == 0
    assert [outcomes.total(table, column) for column in ("rows_in", "rows_out", "rows_quarantined")] == [2300, 2299, 1]
    for segment in ledger.segments():
        for line in segment.lines:
            progress.fold(line)
    assert (progress.shards, progress.done_shards, progress.rows_out, progress.step) == (5, 5, 2299, "publish")


@pytest.mark.parametrize("segments", range(2, SEGMENTS + 1))
def test_a_ledger_of_the_first_version_is_continued_wherever_it_ended(
    segments: int, left: Callable[[int], Path]
) -> None:
    """Its results stand, what is missing is added, and it is published once: with the manifest it meant, if it did."""
    output = left(segments)
    before = receipts(output)
    finish(output)
    state, shown = read(output), publish.newest(LakeStorage(), str(output))
    assert receipts(output)[: len(before)] == before
    plan = revs.read_plan(LakeStorage(), revision_of(output), state, FINGERPRINT)
    assert plan is not None
    assert len(plan) == (3 if segments < SPLIT else 5)
    written = [
        line.shard
        for segment in Ledger(LakeStorage(), revision_of(output)).segments()
        for line in segment.lines
        if isinstance(line, Receipt)
    ]
    assert len(written) == len(set(written))
    assert set(plan.ids()) <= set(written)
    assert shown.number == 1
    assert (shown.runs[RUN] == MANIFEST) == (segments >= INTENT)
    assert [epoch for epoch, _ in state.openers] == list(range(1, state.epoch + 1))


def newer(output: Path) -> None:
    """As a version would write it that has more to say: one more key in every object, one more record an append."""

    def more(value: Any) -> Any:
        return (
            {**{key: more(inner) for key, inner in value.items()}, "sky": "clear"} if isinstance(value, dict) else value
        )

    for path in ledger_of(output).iterdir():
        lines = [json.dumps(more(json.loads(line))) for line in path.read_text().split("\n")]
        path.write_text("\n".join([*lines, json.dumps({"t": "weather", "sky": {"is": "clear"}})]))
    for path in (output / "publications").glob("*"):
        content = json.loads(path.read_text())
        content["runs"] = {run: more(published) for run, published in content["runs"].items()}
        path.write_text(json.dumps({**content, "sky": "clear"}))


@pytest.mark.parametrize("segments", [MENDED, INTENT, SEGMENTS])
def test_what_a_newer_version_adds_is_left_alone(segments: int, left: Callable[[int], Path]) -> None:
    """Records and keys, at any depth: the rest is read as if they were not there, and continued."""
    output = left(segments)
    state, known = read(output), receipts(output)
    newer(output)
    again = read(output)
    for name in ("number", "epoch", "holder", "openers", "committed", "failures", "splits"):
        assert getattr(again, name) == getattr(state, name)
    assert receipts(output) == known
    finish(output)
    assert publish.newest(LakeStorage(), str(output)).number == 1
    assert (publish.newest(LakeStorage(), str(output)).runs[RUN] == MANIFEST) == (segments >= INTENT)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"epoch":2,"writer":"d88306',
        b'{"format":2,"epoch":2,"writer":"d88306","append":"0123"}',
        b"[]",
        b"\x28\xb5\x2f\xfd\x04\x00",
        b"<html>404</html>",
    ],
    ids=["empty", "torn", "another-format", "no-object", "compressed", "a-page"],
)
def test_a_segment_that_cannot_be_understood_is_named(content: bytes, left: Callable[[int], Path]) -> None:
    """It may say that somebody else writes now, or what is done: nobody goes on without it."""
    output = left(MENDED)
    path = ledger_of(output) / "00000005.jsonl"
    path.write_bytes(content)
    for look in (read, receipts, continued):
        with pytest.raises(StorageError, match=re.escape(str(path))):
            look(output)
    assert len(list(ledger_of(output).iterdir())) == MENDED


def test_a_segment_of_a_newer_format_says_which(left: Callable[[int], Path]) -> None:
    output = left(MENDED)
    path = ledger_of(output) / "00000005.jsonl"
    path.write_text('{"format":2,"epoch":2,"writer":"d88306","append":"0123"}')
    with pytest.raises(StorageError) as told:
        read(output)
    assert str(told.value.__cause__) == "format 2"


def test_what_a_language_model_took_is_read_as_an_earlier_version_wrote_it() -> None:
    """What that did not count is 0."""
    taken = {"requests": 3, "retries": 1, "prompt_tokens": 20, "output_tokens": 6, "cached_tokens": 4, "cut": 1}
    receipt = Receipt("s", 1, 1, "w", 2, 2, 0, None, None, 1.0, 2.0)
    found = decode({**encode(receipt), "usage": {**taken, "failed": 0}})
    assert isinstance(found, Receipt)
    assert found.usage == Usage(**taken)
    assert (found.usage.stopped, found.usage.ended_otherwise, found.usage.longest_prompt) == (0, 0, 0)
    later = found.usage.plus(Usage(requests=1, stopped=1, longest_prompt=9))
    assert (later.requests, later.stopped, later.longest_prompt) == (4, 1, 9)
