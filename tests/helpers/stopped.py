"""What one command does to its ledger, in a process of its own that may be stopped, woken and killed for real."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from nightjar.inference.errors import Held, StorageError
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Published
from nightjar.inference.output import publications as publish
from nightjar.inference.records import Receipt
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join

RUN = "2026-11-19"
SHARDS = tuple("abcdef")
LEASE_S = 0.4
SCORES_S = 0.03


def drive(output: str, name: str, seen_dying: bool) -> None:
    """Score what is missing and publish it. seen_dying: others of this machine may ask whether this process lives."""
    me = this_holder("score", name)
    me = me if seen_dying else replace(me, host=f"host of {name}/0")
    with suppress(Held, StorageError):
        writer = open_epoch(LakeStorage(), join(output, "runs", RUN, "r1"), me, lease_s=LEASE_S)
        try:
            if writer.state.published is not None:
                return
            while missing := [shard for shard in SHARDS if shard not in writer.state.committed]:
                time.sleep(SCORES_S)
                writer.append([Receipt(missing[0], 1, 1, name, None, None, 0.1, 0.0, rows_in=10, rows_out=10)])
            publish.publish(writer, output, RUN, Published(1, f"runs/{RUN}/r1/manifest.json", name, RUN))
        finally:
            writer.stop(release=True)
