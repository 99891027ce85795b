"""An output that takes nothing is named by its key, and one that belongs to nobody is left as it was."""

from __future__ import annotations

import errno
import os

import pytest

from faults import FaultyStorage, fail
from nightjar.inference.errors import Denied, JobError, Missing, StorageError, Transient
from nightjar.inference.output.owner import claim_output
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


def test_an_output_below_a_file_is_named_by_its_key(lake: Lake) -> None:
    (lake.folder / "file").write_text("")
    request = lake.ready(output__uri="file/out").request()
    said = rf"^output\.uri: {lake.folder}/file/out is not there and cannot be made \({lake.folder}/file: is no folder, "
    with pytest.raises(JobError, match=said):
        claim_output(request.storage, request.output, "lake")
    with pytest.raises(JobError, match=said):
        probe_output(request)


@pytest.mark.parametrize("error", [Transient("away"), of_system(errno.ENOSPC)])
def test_what_may_pass_or_be_mended_without_the_job_is_no_fault_of_it(lake: Lake, error: StorageError) -> None:
    refusing = FaultyStorage(LakeStorage(), [fail("create", "*", None, error)])
    with pytest.raises(type(error)) as raised:
        claim_output(refusing, str(lake.out), "lake")
    assert raised.value is error
