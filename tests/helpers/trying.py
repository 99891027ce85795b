"""What becomes of each way to change what scores, tried in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ways import AGAIN, HEAD, REFUSED, ROWS_AS_BEFORE, SAID, SCORE, SILENT, UNSEEN, WAYS, Way, lay_input, put

CORES = os.cpu_count() or 1


def try_all(folder: str) -> None:
    """Each way in a fork of this process, as many at once as there are cores."""
    # Imported once, for all, as the records of the packages are read once.
    import pandas  # noqa: F401 (by pyarrow, when it makes arrays of numpy's)

    import nightjar.inference.ledger.remarks
    import nightjar.inference.run.publishing
    import nightjar.inference.run.scoring
    import nightjar.inference.scoring.worker  # noqa: F401
    from nightjar.inference.identity.packages import loaded_packages

    loaded_packages()

    ways = {**WAYS, **SILENT, **UNSEEN}
    for index, way in enumerate(ways.values()):
        if index >= CORES:
            os.wait()
        if not os.fork():
            answer = Path(folder, f"{index}.answer")
            try:
                answer.write_text(become(Path(folder, str(index)), way))
            except BaseException as error:  # noqa: BLE001 (the test shows it)
                answer.write_text(f"failed: {type(error).__name__}: {error}")
            os._exit(0)
    for _ in range(min(CORES, len(ways))):
        os.wait()
    found = {name: Path(folder, f"{index}.answer").read_text() for index, name in enumerate(ways)}
    Path(folder, "outcomes").write_text(json.dumps(found))


def become(root: Path, way: Way) -> str:
    """What becomes of one way, with what was said."""
    from nightjar.inference.identity.packages import added
    from nightjar.inference.ledger.remarks import Remarks

    lay(root, way)
    # Whoever is scored again needs no preflight to be told of.
    before, said = (None, []) if way.expected == AGAIN else preflight(root)
    shards, rows = identities_of(root)
    way.change(root)
    if way.then is not None:
        write_job(root, {**way.job, **way.then})
    if way.variable is not None:
        os.environ[way.variable[0]] = way.variable[1]
    shards_now, rows_now = identities_of(root)
    if shards_now != shards:
        return ROWS_AS_BEFORE if rows_now == rows else AGAIN
    if isinstance(before, str):
        return f"{REFUSED}: {before}"
    if said:
        return f"{SAID}: {said}"
    after, _ = preflight(root)
    about = Remarks(loaded=added(added({}, before.packages), after.packages))
    if changed := about.notes(0):
        return f"{SAID}: {changed}"
    if way.rows and (noticed := score(root)):
        return f"{SAID}: {noticed}"
    return "silent"


def request_of(root: Path) -> Any:
    from nightjar.inference.run.request import fixed, make_request

    return replace(fixed(make_request(root / "job" / "job.yaml", date="2026-11-19")), cache=str(root / "cache"))


def identities_of(root: Path) -> tuple[list[str], Mapping[str, str]]:
    """The ids of the shards, and under which identity outputs of rows are reused."""
    import steps as run
    from nightjar.inference.identity.identity import row_identities

    request = request_of(root)
    found = run.discover(request)
    rows = row_identities(request.job, request.scoring, found.schema)
    return list(run.plan(request, found).plan.ids()), rows


def spec_of(root: Path) -> Any:
    import steps as run
    from nightjar.inference.run.request import worker_spec

    request = request_of(root)
    found = run.discover(request)
    revision = str(root / "job" / "out" / "runs" / "n" / "r1")
    spec = worker_spec(request, found.schema, revision=revision, epoch=1, rows=found.rows)
    return spec, run.plan(request, found).plan


def preflight(root: Path) -> tuple[Any, list[str]]:
    """What preflight answers, and what it says of what identity does not cover."""
    from nightjar.inference.errors import JobError
    from nightjar.inference.run import refusals
    from nightjar.inference.scoring.preflight import Loaded, observed, preflight_steps, samples
    from nightjar.inference.scoring.worker import ShardWorker
    from nightjar.inference.witness.seen import sentences

    spec, plan = spec_of(root)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"predict", "mylib", "h", "pkg", "prep"}]:
        del sys.modules[name]
    outcome: Any = None
    for outcome in observed(spec.job, preflight_steps, partial(ShardWorker, spec), samples(plan)):  # noqa: B007 (the last one counts)
        pass
    if not isinstance(outcome, Loaded):
        return str(outcome), []
    try:
        refusals.refuse_external_reads(spec.job, outcome.outside)
    except JobError as error:
        return str(error), []
    return outcome, sentences(outcome.outside)


def score(root: Path) -> list[str]:
    """What a worker notices while it scores."""
    from nightjar.inference.records import Seen
    from nightjar.inference.scoring.assignment import Assignment
    from nightjar.inference.scoring.worker import ShardWorker

    spec, plan = spec_of(root)
    events = ShardWorker(spec).process([Assignment(shard) for shard in plan.shards()])
    return [event.name for event in events if isinstance(event, Seen)]


def lay(root: Path, way: Way) -> None:
    root.mkdir()
    lay_input(root)
    head = HEAD + f"OUT = Path({str(root)!r})\n"
    for name, text in {"job/predict.py": head + way.code + SCORE, **way.files}.items():
        put(name, text)(root)
    way.first(root)
    if "site-packages/mylib/__init__.py" in way.files:
        sys.path.append(str(root / "site-packages"))
    write_job(root, way.job)


def write_job(root: Path, keys: Mapping[str, Any]) -> None:
    model = {"uses": "predict:score", "features": ["x"], "outputs": {"score": "float32"}, "batch_size": 100}
    job = {"name": "ways", "input": {"uri": "data/"}, "output": {"uri": "out/"}, "carry": ["id"], **keys}
    job["model"] = {**model, **keys.get("model", {})}
    text = yaml.safe_dump(job, sort_keys=False).replace("ROOT", str(root))
    (root / "job" / "job.yaml").write_text(text)
