"""An output that takes nothing is named by its key, and one that belongs to nobody is left as it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import steps as run
from faults import FaultyStorage, fail
from nightjar import flows
from nightjar.flows import starting
from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import Denied, JobError, Missing, StorageError, Transient
from nightjar.inference.output.owner import check_writable, claim_output
from nightjar.inference.run.resume import probe_output
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.local import storage_error
from support import Lake


def of_system(number: int) -> StorageError:
    """As the storage raises what the system says of a file."""
    system = OSError(number, os.strerror(number))
    error = storage_error(system, "job.json")
    error.__cause__ = system
    return error


REFUSED = [
    (Denied("job.json: not yours"), "nothing can be written to {out}: job.json: not yours"),
    (Missing("job.json: no such bucket"), "{out} is not there and cannot be made (job.json: no such bucket); choose"),
    (of_system(errno.EROFS), "nothing can be written to {out}: job.json: "),
]


@pytest.mark.parametrize(("error", "said"), REFUSED)
def test_an_output_that_takes_nothing_is_the_jobs_fault_and_named_by_its_key(
    lake: Lake, error: StorageError, said: str
) -> None:
    """By the first write of a run, and by the probe of `check`."""
    refusing = FaultyStorage(LakeStorage(), [fail("create", "*", None, error)])
    request = lake.ready().request(storage=refusing)
    with pytest.raises(JobError) as claimed:
        claim_output(refusing, request.output, "lake")
    assert str(claimed.value).startswith("output.uri: " + said.format(out=lake.out))
    with pytest.raises(JobError) as probed:
        probe_output(request)
    assert str(probed.value) == str(claimed.value)


@pytest.mark.parametrize("error", [Transient("away"), of_system(errno.ENOSPC)])
def test_what_may_pass_or_be_mended_without_the_job_is_no_fault_of_it(lake: Lake, error: StorageError) -> None:
    refusing = FaultyStorage(LakeStorage(), [fail("create", "*", None, error)])
    with pytest.raises(type(error)) as raised:
        claim_output(refusing, str(lake.out), "lake")
    assert raised.value is error


@contextmanager
def refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system says that this folder may not be written. Root may do everything, so it is told to."""
    access = os.access
    with monkeypatch.context() as here:
        here.setattr(
            os, "access", lambda path, mode: not (Path(path) == folder and mode & os.W_OK) and access(path, mode)
        )
        yield


def test_a_folder_that_may_not_be_written_is_found_without_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a" / "out"
    check_writable(str(out))
    check_writable("s3://bucket/out")
    with refused(tmp_path, monkeypatch):
        with pytest.raises(JobError) as raised:
            check_writable(str(out))
        assert str(raised.value) == (
            f"output.uri: nothing can be written to {out}: {tmp_path} may not be written; allow it to the user this "
            "process runs as, or choose another place"
        )
        out.mkdir(parents=True)
        check_writable(str(out))
    assert list(out.iterdir()) == []


def test_it_is_found_before_prefect_or_a_cluster_starts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    request = lake.ready().request()
    discovery = run.discover(request)
    with refused(lake.folder, monkeypatch):
        with pytest.raises(JobError, match=r"^output\.uri: "):
            starting.look_first(request, None)
        with pytest.raises(JobError, match=r"^output\.uri: "):
            starting.check(request, discovery, None, False)
        with pytest.raises(JobError, match=r"^output\.uri: "):
            flows.backfill(lake.job_path, "2026-11-01", "2026-11-30", engine=LOCAL)
    assert not lake.out.exists()


def test_the_machines_of_a_named_cluster_may_write_where_this_one_may_not(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused(lake.ready().folder, monkeypatch):
        for engine, cluster in ((LOCAL, None), (LOCAL, "head:6379"), (RAY, None)):
            with pytest.raises(JobError, match=r"^output\.uri: "):
                starting.check_output(lake.request(engine=engine), cluster)
        starting.check_output(lake.request(engine=RAY), "head:6379")
        monkeypatch.setenv("NIGHTJAR_RAY", "head:6379")
        starting.check_output(lake.request(engine=RAY), None)
