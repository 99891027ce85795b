"""Work is done once: what each step of a run asks of the storage, counted. A count that changes is a decision.

The lake has 4 files that make 8 shards. Only what time decides is kept out: no lease is kept alive, and the ledger
gets its events when a pass ends.

What is asked more than once, is asked because it may have changed since. Of each shard a worker looks twice at its file
(`stat input`: changed while it was read?) and, but for the first look of all, twice at the ledger (`list ledger`: was
this run replaced?). Preflight reads rows that are read again to be scored (`open input`). `list publications` comes
before the new snapshot, after it, and when `latest/` was written: is there a newer one? What stands in `latest/` and
`dates/` is read before it is written (`read places`): nothing is rewritten that is right.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.runtime import flow_run

import steps as run
from nightjar.flows import nightly_flow, starting
from nightjar.flows.cli import trying
from nightjar.flows.flow_call import Call, handing
from nightjar.flows.nightly_flow import nightly
from nightjar.inference.errors import ShardsFailed
from nightjar.inference.history.run_tables import RunReport
from nightjar.inference.identity import snapshots
from nightjar.inference.identity.unpacking import place_model
from nightjar.inference.input.plan import Plan
from nightjar.inference.output import revisions as revs
from nightjar.inference.run import campaign
from nightjar.inference.run.campaign import Campaign
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

T = TypeVar("T")

WITH_WEIGHTS = """
class Weighted:
    def __init__(self, path):
        self.factor = int(open(path).read())

    def __call__(self, batch):
        return {"score": batch["x"] * self.factor}
"""

KINDS = {
    "input": r"^/data",
    "model": r"^/weights\.bin$",
    "probe": r"^/out/\.nightjar-probe-",
    "owner": r"^/out/job\.json$",
    "publications": r"^/out/publications",
    "places": r"^/out/(latest|dates)",
    "snapshot": r"^/out/snapshots/",
    "run record": r"/run\.json$",
    "ledger": r"/ledger(/|$)",
    "plan": r"/plan-\d+\.parquet$",
    "identity": r"/identity-\d+\.json$",
    "part": r"/(data|quarantine)/[^/]+\.parquet$",
    "parts": r"/r\d+/(data|quarantine|sidecars)$",
    "shards": r"/shards-\d+\.parquet$",
    "manifest": r"/manifest-\d+\.json$",
    "success": r"/_SUCCESS$",
    "revisions": r"^/out/runs/[^/]+$",
    "revision": r"^/out/runs/[^/]+/r\d+$",
    "not begun": r"/not-begun\.json$",
    "output": r"^/out$",
    "nothing": r"^$",
}
"""What lies where."""


FIRST = {
    "request": {},
    "discover": {
        "list input": 1,
        "open input": 4,
        "read owner": 1,
        "read run record": 1,
        "stat output": 1,
    },
    "score": {
        "create identity": 1,
        "create ledger": 5,
        "create owner": 1,
        "create plan": 1,
        "create probe": 2,
        "create run record": 1,
        "create snapshot": 1,
        "delete probe": 1,
        "list ledger": 17,
        "list publications": 1,
        "open input": 9,
        "read ledger": 1,
        "read probe": 1,
        "stat input": 16,
        "stat snapshot": 1,
        "subfolders revisions": 1,
        "write part": 8,
    },
    "validate": {
        "create ledger": 1,
        "create manifest": 1,
        "create shards": 1,
        "list ledger": 1,
        "read ledger": 11,
        "read part": 8,
        "read plan": 1,
    },
    "publish": {
        "create ledger": 4,
        "create publications": 1,
        "create success": 1,
        "leftovers revision": 1,
        "list ledger": 1,
        "list parts": 5,
        "list publications": 3,
        "read ledger": 15,
        "read manifest": 1,
        "read places": 7,
        "read plan": 1,
        "read publications": 1,
        "read shards": 1,
        "stat success": 1,
        "subfolders places": 1,
        "write places": 6,
    },
}
"""A first run. The ninth file that is opened is preflight's."""

AGAIN = {
    "request": {},
    "discover": {
        "list input": 1,
        "open input": 4,
        "read owner": 1,
        "read run record": 1,
        "stat output": 1,
    },
    "score": {
        "create owner": 1,
        "create probe": 2,
        "create run record": 1,
        "delete probe": 1,
        "list ledger": 1,
        "list publications": 1,
        "read ledger": 10,
        "read manifest": 1,
        "read owner": 1,
        "read places": 1,
        "read plan": 1,
        "read probe": 1,
        "read publications": 1,
        "read run record": 1,
        "read success": 1,
        "stat snapshot": 1,
        "subfolders revisions": 1,
    },
    "validate": {
        "read manifest": 1,
    },
    "publish": {
        "delete not begun": 1,
        "list parts": 2,
        "list publications": 3,
        "read manifest": 1,
        "read places": 7,
        "read publications": 2,
        "read shards": 1,
        "stat success": 1,
    },
}
"""The same command again, with nothing to do: no part, no ledger beyond the first step, is looked at."""

CONTINUED = {
    "request": {
        "read run record": 1,
    },
    "discover": {
        "list input": 1,
        "open input": 4,
        "read owner": 1,
        "read run record": 1,
        "stat output": 1,
    },
    "score": {
        "create ledger": 3,
        "create owner": 1,
        "create probe": 2,
        "create run record": 1,
        "delete probe": 1,
        "list ledger": 16,
        "list publications": 1,
        "open input": 8,
        "read ledger": 7,
        "read owner": 1,
        "read places": 1,
        "read plan": 1,
        "read probe": 1,
        "read publications": 1,
        "read run record": 1,
        "read success": 1,
        "stat input": 14,
        "stat snapshot": 1,
        "subfolders revisions": 1,
        "write part": 7,
    },
    "validate": {
        "create ledger": 1,
        "create manifest": 1,
        "create shards": 1,
        "list ledger": 1,
        "read ledger": 19,
        "read part": 8,
        "read plan": 1,
    },
    "publish": {
        "create ledger": 4,
        "create publications": 1,
        "create success": 1,
        "leftovers revision": 1,
        "list ledger": 1,
        "list parts": 5,
        "list publications": 3,
        "read ledger": 23,
        "read manifest": 1,
        "read places": 7,
        "read plan": 1,
        "read publications": 3,
        "read shards": 1,
        "stat success": 1,
        "write places": 2,
    },
}
"""A run that another command began, of which one shard was done. Another run was published before."""


class Counting:
    """A storage that notes in a file what it is asked, also by the process that scores."""

    def __init__(self, lake: Lake) -> None:
        self._inner, self._lake = LakeStorage(), str(lake.folder)
        self._noted = lake.folder.with_name("asked.txt")
        self.clear()

    def clear(self) -> None:
        self._noted.write_text("")

    def asked(self) -> Counter[str]:
        """How often each: "operation kind" → times."""
        return Counter(self._noted.read_text().splitlines())

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation.startswith("_"):
            raise AttributeError(operation)  # as a process asks to which it is sent
        call = getattr(self._inner, operation)

        def counted(uri: Any, *more: Any, **named: Any) -> Any:
            uris = tuple(uri) if operation == "delete" else (more[0] if operation == "copy" else uri,)
            with self._noted.open("a") as noted:
                noted.write(f"{operation} {self._kind(uris[0] if uris else '')}\n")
            return call(uris if operation == "delete" else uri, *more, **named)

        return counted

    def _kind(self, uri: str) -> str:
        name = uri.removeprefix(self._lake)
        return next(kind for kind, pattern in KINDS.items() if re.search(pattern, name))


class Steps:
    """The steps of a run, and what each asked."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.storage = lake, Counting(lake)
        self.asked: dict[str, dict[str, int]] = {}

    def step(self, name: str, do: Callable[..., T], *given: Any) -> T:
        self.storage.clear()
        try:
            return do(*given)
        finally:
            self.asked[name] = dict(sorted(self.storage.asked().items()))

    def request(self, **options: Any) -> RunRequest:
        made = self.lake.request(storage=self.storage, engine="local", **options)  # type: ignore[arg-type]
        return replace(made, lease_s=1e6)

    def run(self, **options: Any) -> None:
        request = self.step("request", lambda: self.request(**options))
        found = self.step("discover", run.discover, request)
        scored = self.step("score", run.score, request, found)
        verdict = self.step("validate", run.validate, request, scored, found)
        self.step("publish", run.publish_run, request, scored, verdict)

    def leave_begun(self, run_id: str, shard: str) -> None:
        """A command that scores one shard and leaves the rest."""
        request = self.request(run_id=run_id)

        whole = Campaign.run

        def score_one(campaign: Campaign) -> None:
            one = campaign.plan.shard(shard)
            assert one is not None
            campaign.plan = Plan.of([one])
            whole(campaign)
            raise ShardsFailed("the rest is left")

        with patch.object(Campaign, "run", score_one), pytest.raises(ShardsFailed):
            run.score(request, run.discover(request))


_opened = Counter[str]()


def _count(event: str, given: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(given[0], str):
        _opened[given[0]] += 1


@pytest.fixture(scope="session")
def hook() -> None:
    """Never taken away again: Python cannot."""
    sys.addaudithook(_count)


@pytest.fixture
def opened(hook: None) -> Callable[[str], int]:
    """How often Python opened a file so far."""
    return lambda path: _opened[path]


@pytest.fixture
def counted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(campaign, "FLUSH_S", 1e9)
    return Steps(lake.ready())


def test_a_first_run_its_page_and_the_same_command_again(counted: Steps) -> None:
    """The page is what the flow shows of a step: one look at the ledger for all of its tables. Again each step reads
    each segment of its ledger once, however many there are, and lists it once.
    """
    counted.run()
    assert counted.asked == FIRST

    def look() -> int:
        newest = revs.newest_revision(counted.storage, counted.lake.request().run_uri)  # type: ignore[arg-type]
        assert newest is not None
        report = RunReport(counted.request(), newest)
        return len(report.shards(300)) + len(report.incidents(300))

    assert counted.step("page", look) == 8
    segments = len(list((counted.lake.revision() / "ledger").iterdir()))
    assert counted.asked.pop("page") == {
        "list ledger": 1,
        "read ledger": 2 * segments,
        "read plan": 1,
        "read success": 1,
        "subfolders revisions": 1,
    }
    counted.run()
    assert counted.asked == AGAIN
    assert AGAIN["score"]["read ledger"] == segments
    for step in ("validate", "publish"):
        assert not [what for what in AGAIN[step] if what.endswith(("ledger", "input", "plan", "part"))]


@pytest.mark.system
def test_a_run_that_is_continued(counted: Steps) -> None:
    counted.run()
    counted.leave_begun("second", next(iter(counted.lake.planned().ids())))
    counted.run(run_id="second")
    assert counted.asked == CONTINUED


LOOK = {
    "list input": 1,
    "open input": 6,
    "read owner": 1,
    "read run record": 1,
    "stat output": 1,
}
"""What `run` looks at before it starts anything, in a lake whose first file has no labels.

Of the input its first files: all four are described (4), the first has no labels (1), and those of the second are what
they must be (1).
"""

PLAN = {
    "list input": 1,
    "list publications": 1,
    "open input": 4,
    "read owner": 1,
    "read run record": 1,
    "stat output": 1,
    "subfolders revisions": 1,
}
"""`plan` of a night that was not begun: it discovers, as a run does, and looks for earlier nights to reuse."""


def with_labels(lake: Lake) -> None:
    """All files but the first one have labels."""
    for index, path in enumerate(sorted((lake.folder / "data").iterdir())):
        table = pq.read_table(path)
        label = pa.array([index % 2 if index else None] * table.num_rows, pa.int8())
        pq.write_table(table.append_column("late", label), path)


def test_a_command_lists_the_input_once_before_the_run(counted: Steps) -> None:
    with_labels(counted.lake)
    counted.lake.write_job(label="late")
    request = counted.request()
    waits = counted.step("look", starting.look_first, request, None)
    assert not waits
    assert counted.asked["look"] == LOOK
    counted.lake.write_job(input__wait={"for": "1s", "until": 5})
    waits = starting.look_first(counted.request(), None)
    assert waits, "so the flow connects to a cluster once the input is there"


def test_a_plan_lists_the_input_once(counted: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    request = counted.request()
    monkeypatch.setattr("nightjar.inference.run.request.make_request", lambda *_, **__: request)
    counted.step("plan", trying.plan, str(counted.lake.job_path))
    assert counted.asked["plan"] == PLAN


def test_the_model_is_read_once(counted: Steps, opened: Callable[[str], int]) -> None:
    """When the run begins, for its snapshot: whatever scores loads the copy of that."""
    counted.lake.write_model(WITH_WEIGHTS)
    (counted.lake.folder / "weights.bin").write_bytes(b"2")
    counted.lake.write_job(model__uses="model:Weighted", model__path="weights.bin", model__batch_size=256)
    weights = str(counted.lake.folder / "weights.bin")
    before = opened(weights)
    counted.run()
    assert opened(weights) - before == 1
    assert (counted.lake.published()["score"] == counted.lake.published()["id"] * 2).all()


@pytest.mark.system
def test_a_large_model_is_hashed_once_by_the_driver_and_once_per_node(
    counted: Steps, opened: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is too large to travel with the run, so it is read where it lies: again before the publication, and by nobody
    else, however many processes of a node load it, in this run and the next."""
    monkeypatch.setattr(snapshots, "COPIED_BYTES", 0)
    counted.lake.write_model(WITH_WEIGHTS)
    weights = counted.lake.folder / "weights.bin"
    weights.write_bytes(b"2")
    counted.lake.write_job(model__uses="model:Weighted", model__path="weights.bin", model__batch_size=256)
    driver, publication = 1, 1  # the node's is preflight's, in a process of its own, where Python's hook is not
    before = opened(str(weights))
    counted.run()
    assert opened(str(weights)) - before == driver + publication
    request = counted.request()
    before = opened(str(weights))
    for _ in range(3):
        place_model(request.storage, request.scoring.models[0], Path(request.cache), str(weights))
    assert opened(str(weights)) == before
    counted.run(run_id="another")
    assert opened(str(weights)) - before == driver + publication


def test_a_request_is_made_once_for_a_command(
    counted: Steps, opened: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow goes on with the request that the command has made and looked at: its job, its code and its model."""
    made = counted.request()
    files = [str(counted.lake.job_path), str(counted.lake.folder / "model.py")]
    before = [opened(file) for file in files]
    counted.storage.clear()
    seen: list[object] = []

    def begin(asked: RunRequest, *, patient: bool) -> bool:
        seen.extend([asked, [opened(file) for file in files], list(counted.storage.asked())])
        raise KeyboardInterrupt

    monkeypatch.setattr(nightly_flow, "wait_for_input", begin)
    with handing(Call(made)), pytest.raises(KeyboardInterrupt):
        nightly.fn(job=str(counted.lake.job_path), date=dt.date(2026, 11, 19))
    assert seen == [replace(made, flow_run=str(flow_run.id)), before, []]
