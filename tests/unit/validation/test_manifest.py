"""What a validated revision says of itself, and that what it says is what lies there."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import Damaged, JobError
from nightjar.inference.identity.identity import Identity
from nightjar.inference.job.seams import FRAMEWORKS, Framework
from nightjar.inference.jsonform import to_json
from nightjar.inference.ledger.endings import done, utc
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Packages, Planned, Preflight, Published
from nightjar.inference.ledger.remarks import Remarks
from nightjar.inference.metrics.columns import ColumnState
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output.outcomes import OUTCOMES
from nightjar.inference.output.parts import checksum
from nightjar.inference.output.revisions import RevisionFile, newest_revision, planned_by, revision_in
from nightjar.inference.records import Counts, Failed, Seen
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.usage import Usage
from nightjar.inference.validation.audit import Audited
from nightjar.inference.validation.evidence import run_manifest
from nightjar.inference.validation.gates import GateResult, Offender
from nightjar.inference.validation.manifest import (
    Content,
    Manifest,
    Proof,
    Totals,
    manifest_of,
    read_manifest,
    read_profile,
    write_manifest,
)
from nightjar.inference.validation.rescore import Rescored
from nightjar.inference.witness.seen import Collection
from outputs import FIRST_MANIFEST
from support import Lake

REFUSES = """
def score(batch):
    if 1234 in batch["x"]:
        raise ValueError("not this row")
    return {"score": batch["x"] * 2}
"""


def test_a_manifest_says_what_was_validated_and_how(lake: Lake) -> None:
    """Its totals, its gates, its versions; where its shards are listed, by name, size and checksum."""
    lake.write_model(REFUSES)
    lake.ready(retry__max_quarantined=0.01, rescore={"share": 0.25})
    ran = lake.run(engine="local")
    raw = (lake.out / ran.verdict.published.manifest).read_bytes()
    assert ran.verdict.published.checksum == checksum(raw)
    assert raw == json.dumps(json.loads(raw), indent=1).encode(), "a person can read it"
    listed = (lake.out / ran.verdict.shards).read_bytes()
    manifest = json.loads(raw)
    at = dt.datetime.fromisoformat(manifest.pop("validated_at"))
    assert dt.timedelta(0) <= dt.datetime.now(dt.UTC) - at < dt.timedelta(minutes=5)
    assert (at.utcoffset(), at.microsecond) == (dt.timedelta(0), 0)
    libraries = {"nightjar-batch", "ray", "pyarrow", "numpy", "pandas", "prefect", "torch", "scikit-learn", "skops"}
    libraries |= {"onnxruntime", "lightgbm", "xgboost-cpu", "transformers", "tokenizers", "keras", "openai"}
    installed = {name: version(name) for name in libraries}
    assert manifest.pop("libraries") == {"python": platform.python_version(), **installed}
    assert "pyarrow" in manifest.pop("loaded")
    assert manifest.pop("judging") == lake.request().scoring.judging
    assert manifest.pop("identity")["model"]["outputs"] == [["score", "float32"]]
    source = hashlib.sha256(REFUSES.encode()).hexdigest()
    assert manifest["code"].pop("digest")
    shards = pq.ParquetFile(pa.BufferReader(listed)).read()
    assert shards.column_names == [*OUTCOMES.names, "failed_attempts"]
    again = manifest["audit"]["rescored"]["rows"]
    assert again in (1999, 2000), "of two shards of a thousand rows; which ones is chance"
    assert manifest == {
        "job": "lake",
        "run_id": "2026-11-19",
        "date": "2026-11-19",
        "revision": 1,
        "fingerprint": planned_by(newest_revision(LakeStorage(), lake.request().run_uri)),
        "input": f"{lake.folder}/data/",
        "code": {"files": {"model.py": source}},
        "model": {"digest": "", "files": {}},
        "packages": {},
        "outside": [],
        "preflight": [],
        "again": [],
        "totals": {
            "rows_in": 8000,
            "rows_out": 7999,
            "rows_quarantined": 1,
            "rows_partial": 0,
            "rows_left_out": 0,
            "batches_cut": sum(shards["batches_cut"].to_pylist()),
            "shards": 8,
            "bytes": sum(part["size"] for part in shards["data"].to_pylist()),
            "files_left_out": 0,
        },
        "shards": {
            "file": ran.verdict.shards.rpartition("/")[2],
            "checksum": checksum(listed),
            "size": len(listed),
        },
        "audit": {
            "cover": "every row index",
            "shards": 8,
            "checksums": "xxh3-128",
            "rescored": asdict(Rescored(2, again)),
        },
        "gates": [to_json(gate) | {"where": []} for gate in ran.verdict.gates],
        "metrics": to_json(ran.verdict.metrics),
        "failed_attempts": 0,
    }
    folder = "runs/2026-11-19/r1"
    assert ran.verdict.published.manifest == f"{folder}/manifest-{ran.verdict.epoch:06d}.json"
    assert ran.verdict.shards == f"{folder}/shards-{ran.verdict.epoch:06d}.parquet"


def test_a_manifest_says_what_a_person_should_know_of_the_scoring(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the ledger has it; and the packages that count. A framework whose library is not installed has no version."""
    (tmp_path / "adapter_of_mine.py").write_text("class ADAPTER:\n    libraries = ('numpy', 'no-such-library')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(FRAMEWORKS, "mine", Framework("adapter_of_mine", "a file"))
    job = lake.ready().request().job
    uri = str(lake.out / "runs/2026-11-19/r3")
    seen, loaded = Seen("database", "/d.sqlite", "p.py:1"), {"numpy": "0.1"}
    writer = open_epoch(LakeStorage(), uri, this_holder("validate"))
    writer.append(
        [
            Planned(file="p", fingerprint="f", date="2026-11-19", again=("model.py changed",)),
            Packages(loaded),
            Preflight(("the model writes over its batch",)),
            seen,
        ]
    )
    identity = Identity({}, [], [], {"m.pt2": "aa"}, {"model.py": "bb"}, {"mine": "cc"}, {"": "dd"}, "ee")
    figures = Metrics.for_job(job).results()
    night = (job, "2026-11-19", "2026-11-19", 3, identity, "", writer, uri)
    published, _ = write_manifest(*night, OUTCOMES.empty_table(), Audited(), figures, (), None)
    writer.stop(release=True)
    manifest = manifest_of((lake.out / published.manifest).read_bytes(), "manifest.json")
    assert (manifest.again, manifest.preflight) == (("model.py changed",), ("the model writes over its batch",))
    assert (manifest.outside, manifest.loaded) == ((seen,), {"numpy": ("0.1",)})
    assert manifest.packages == {"mine": "cc"}
    assert (manifest.code, manifest.model) == (Content("ee", {"model.py": "bb"}), Content("dd", {"m.pt2": "aa"}))
    assert manifest.fingerprint == identity.fingerprint
    assert "numpy" in manifest.libraries
    assert "no-such-library" not in manifest.libraries
    assert manifest.snapshots == ()
    assert manifest.totals == Totals(0, 0)


def test_a_manifest_counts_what_was_left_out_and_what_memory_made_smaller(lake: Lake) -> None:
    """The smallest batches of all shards."""
    job = lake.ready().request().job
    uri = str(lake.out / "runs/2026-11-19/r1")
    writer = open_epoch(LakeStorage(), uri, this_holder("validate"))
    writer.append([Planned(file="p", fingerprint="f", date="2026-11-19", snapshot="7")])
    lines = [{"shard": str(index), "ceilings": found} for index, found in enumerate([(0, 30), (20, 0), ()])]
    table = pa.Table.from_pylist(lines, schema=OUTCOMES)
    counts = Counts(rows_in=9, rows_out=8, rows_quarantined=1, rows_left_out=4, rows_partial=2)
    audited = Audited(counts=counts, size=77)
    figures = Metrics.for_job(job).results()
    night = (job, "2026-11-19", "2026-11-19", 1, Identity({}, [], [], {}, {}, {}, {}, ""), "", writer, uri)
    published, shards = write_manifest(*night, table, audited, figures, (), None, 5)
    writer.stop(release=True)
    manifest = manifest_of((lake.out / published.manifest).read_bytes(), "manifest.json")
    assert manifest.totals == Totals(
        shards=3,
        bytes=77,
        files_left_out=5,
        ceilings=(20, 30),
        **counts.by_name,
    )
    assert manifest.snapshots == ("7",)
    assert manifest.remarks().notes(0) == ("the input is snapshot 7 of its table",)
    assert pq.read_table(lake.out / shards)["shard"].to_pylist() == ["0", "1", "2"]


def test_a_manifest_has_everything_that_it_is_given_and_is_read_back_as_it_was_written(
    lake: Lake, tmp_path: Path
) -> None:
    """Each field with a value of its own: what language models took, a profile, gates, metrics, a second scoring."""
    job = lake.ready().request().job
    uri, storage = str(lake.out / "runs/nightly/r2"), LakeStorage()
    writer = open_epoch(storage, uri, this_holder("validate"))
    seen, package = Seen("database", "/d.sqlite", "p.py:1"), "0.1"
    planned = Planned(file="p", fingerprint="f", date="2026-11-18", again=("model.py changed",), snapshot="7")
    failed = [Failed("one", 1, "died", "gone"), Failed("one", 2, "died", "gone"), Failed("two", 1, "died", "gone")]
    writer.append([planned, Packages({"numpy": package}), Preflight(("a note",)), seen, *failed])
    sizes = {"ceilings": [30]}
    took = [Usage(requests=3, output_tokens=70, answering_ms=5), Usage(requests=4, retries=1, longest_prompt=9), None]
    lines = [
        {"shard": shard, "usage": to_json(usage) if usage else None, **sizes}
        for shard, usage in zip(("one", "two", "three"), took, strict=True)
    ]
    table = pa.Table.from_pylist(lines, schema=OUTCOMES)
    described = Profile.empty(["x"])
    described.update(pa.table({"x": [1.0, 2.0, None]}))
    counts = Counts(rows_in=100, rows_out=97, rows_quarantined=3, rows_left_out=11, rows_partial=2, batches_cut=5)
    audited = Audited(shards=3, counts=counts, size=4321, metrics=Metrics(profile=described))
    offender = Offender("one", "f.parquet", 7, "-1.0", "nightjar replay")
    gates = (
        GateResult("complete", True, "3 of 3 shards", "all", "All."),
        GateResult("score.min", False, "-1.0", "0", "A score is below 0.", (offender,), "warn"),
    )
    figures = Figures(
        {"score": ColumnState(rows=97, nulls=1, nonfinite=0, min=-1.0, max=2.0, kind="number")},
        profile=described.results(),
    )
    rescored = Rescored(1, 50, 2, 0.25, "row 3", 1)
    identity = Identity(
        {"carry": ["id"]}, [], [], {"m.pt2": "aa"}, {"model.py": "bb"}, {"mine": "cc"}, {"": "dd"}, "ee"
    )
    night = (job, "nightly", "2026-11-18", 2, identity, "", writer, uri)
    before = utc()
    published, listed = write_manifest(*night, table, audited, figures, gates, rescored, files_left_out=6)
    after = utc()
    writer.stop(release=True)
    number = f"{writer.epoch:06d}"
    name = f"runs/nightly/r2/manifest-{number}.json"
    raw, shards, profile = ((lake.out / each).read_bytes() for each in (name, listed, f"{uri}/profile-{number}"))
    assert published == Published(2, name, checksum(raw), "2026-11-18")
    assert listed == f"runs/nightly/r2/shards-{number}.parquet"
    manifest = manifest_of(raw, "manifest.json")
    assert before <= manifest.validated_at <= after
    assert manifest == Manifest(
        job="lake",
        run_id="nightly",
        date="2026-11-18",
        revision=2,
        fingerprint=identity.fingerprint,
        input=f"{lake.folder}/data/",
        identity={"carry": ["id"]},
        code=Content("ee", {"model.py": "bb"}),
        model=Content("dd", {"m.pt2": "aa"}),
        packages={"mine": "cc"},
        outside=(seen,),
        loaded={"numpy": (package,)},
        preflight=("a note",),
        again=("model.py changed",),
        snapshots=("7",),
        libraries=manifest.libraries,
        totals=Totals(
            shards=3,
            bytes=4321,
            files_left_out=6,
            ceilings=(30,),
            **counts.by_name,
            usage=Usage(requests=7, retries=1, output_tokens=70, longest_prompt=9, answering_ms=5),
        ),
        shards=RevisionFile(f"shards-{number}.parquet", checksum(shards), len(shards)),
        profile=RevisionFile(f"profile-{number}", checksum(profile), len(profile)),
        audit=Proof("every row index", 3, "xxh3-128", rescored),
        gates=gates,
        metrics=figures,
        failed_attempts=3,
        validated_at=manifest.validated_at,
    )
    assert pq.read_table(lake.out / listed)["failed_attempts"].to_pylist() == [2, 1, 0]
    remarks = manifest.remarks()
    assert remarks.snapshots == ("7",)
    assert manifest.profile is not None
    kept = read_profile(storage, revision_in(str(lake.out), "nightly", manifest.revision), manifest.profile)
    assert kept.results() == described.results()


def test_a_profile_that_is_not_the_one_that_was_published_is_named(tmp_path: Path) -> None:
    """Or that another version wrote."""
    file = tmp_path / "runs/2026-11-19/r1/profile-000003"
    file.parent.mkdir(parents=True)
    published = RevisionFile(file.name, checksum(b"no profile"), 10)
    for content, kind, why in (
        (b"another", JobError, "not the file that was published; restore it"),
        (b"no profile", Damaged, "not a profile that this version can read"),
    ):
        file.write_bytes(content)
        with pytest.raises(kind) as refused:
            read_profile(LakeStorage(), str(file.parent), published)
        assert str(refused.value) == f"{file}: {why}"


def test_a_run_that_was_validated_and_not_published_has_the_manifest_of_its_last_validation(tmp_path: Path) -> None:
    """There is none as long as its newest revision is not validated, or ended in another way."""
    uri, storage = str(tmp_path / "runs/trial"), LakeStorage()
    assert run_manifest(storage, str(tmp_path), "trial") is None
    for ending in (None, done("validate", limited=True), done("validate", limited=False)):
        writer = open_epoch(storage, f"{uri}/r1", this_holder("validate"))
        writer.append([Planned(file="p", fingerprint="f", date="2026-11-19")])
        content = json.dumps({**FIRST_MANIFEST, "failed_attempts": writer.epoch}).encode()
        storage.create(f"{uri}/r1/manifest-{writer.epoch:06d}.json", content)
        assert run_manifest(storage, str(tmp_path), "trial") is None
        writer.stop(release=True, ending=ending)
    storage.create(f"{uri}/r1/manifest-999999.json.torn", b"")
    storage.create(f"{uri}/r1/shards-999999.parquet", b"")
    found = run_manifest(storage, str(tmp_path), "trial")
    assert found is not None
    file = Path(uri, "r1", f"manifest-{writer.epoch:06d}.json")
    named = Published(1, f"runs/trial/r1/{file.name}", checksum(file.read_bytes()), FIRST_MANIFEST["date"])
    assert (found[0], found[1].failed_attempts) == (named, writer.epoch)
    file.write_bytes(b"{}")
    with pytest.raises(JobError) as refused:
        run_manifest(storage, str(tmp_path), "trial")
    assert str(refused.value) == f"{file}: not a manifest that this version can read"


def test_without_rescoring_a_manifest_does_not_claim_it(lake: Lake) -> None:
    ran = lake.ready().run(engine="local")
    audit = json.loads((lake.out / ran.verdict.published.manifest).read_bytes())["audit"]
    assert (audit["cover"], audit["rescored"]) == ("every row index", None)


def test_a_finished_run_is_told_from_its_manifest() -> None:
    """Also from one that has none of this."""
    about = Remarks(
        again=("model.py changed",),
        preflight=("the model writes over its batch",),
        outside=Collection([Seen("database", "/d.sqlite", "p.py:1")]),
        loaded={"numpy": ("0.1",), "not-installed-here": ("1",)},
    )
    said = {
        "again": list(about.again),
        "preflight": list(about.preflight),
        "outside": [to_json(seen) for seen in about.outside.all()],
    }
    loaded = {name: list(states) for name, states in about.loaded.items()}
    found = json.dumps({**FIRST_MANIFEST, **said, "loaded": loaded}).encode()
    remarks = manifest_of(found, "manifest.json").remarks()
    now = {"numpy": ("0.1", version("numpy")), "not-installed-here": ("1",)}
    assert (remarks.again, remarks.loaded) == (about.again, now)
    assert remarks.outside.all() == about.outside.all()
    wrote, cut, packages, database = remarks.notes(1000)
    assert wrote == "the model writes over its batch"
    assert cut.startswith("1,000 batches failed and were scored in parts")
    assert packages.startswith("packages changed since this run was begun, and what is scored stays: numpy 0.1 → ")
    assert database.startswith("p.py opens the database /d.sqlite")
    assert manifest_of(json.dumps(FIRST_MANIFEST).encode(), "manifest.json").remarks().notes(0) == ()


def test_packages_are_compared_with_what_they_were_scored_with_last() -> None:
    """A package whose state of now is the last of several has not changed since."""
    states = {"numpy": ["0.1", version("numpy")]}
    found = manifest_of(json.dumps({**FIRST_MANIFEST, "loaded": states}).encode(), "manifest.json")
    assert {name: [*each] for name, each in found.remarks().loaded.items()} == states


@pytest.mark.parametrize("content", [b"{}", b"[]", b"no JSON", b'{"job": 7}'])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    published = Published(1, "manifest.json", checksum(content), "2026-11-19")
    with pytest.raises(JobError) as refused:
        read_manifest(LakeStorage(), str(tmp_path), published)
    assert str(refused.value) == f"{tmp_path}/manifest.json: not a manifest that this version can read"
