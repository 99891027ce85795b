"""A model's folder holds nothing that a run reads or writes: or it would be another model after each run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.run.refusals import check_without_input
from support import Lake

BESIDE: dict[str, dict[str, Any]] = {
    "output.uri": {"output__uri": "m/out"},
    "input.uri": {"input__uri": "m/data/*.parquet"},
    "output.tables[0].delta": {"output__tables": [{"delta": "m/table"}]},
}


@pytest.mark.parametrize("path", ["m/", "m", "link"])
@pytest.mark.parametrize("key", BESIDE)
def test_a_model_that_holds_what_a_run_reads_or_writes_is_refused(lake: Lake, key: str, path: str) -> None:
    """As a model from a hub does, with the job in its folder; whatever path leads there."""
    (lake.folder / "m" / "data").mkdir(parents=True)
    (lake.folder / "m" / "weights").write_text("1")
    (lake.folder / "link").symlink_to("m")
    lake.ready(model__path=path, **BESIDE[key])
    holds = f"{path.rstrip('/')} holds {key} {lake.folder}/m/"
    said = rf"^model\.path: {re.escape(f'{lake.folder}/{holds}')}\w+: each new file .* in model\.path$"
    with pytest.raises(JobError, match=said):
        check_without_input(lake.request())
    lake.write_job(model__path=path)
    check_without_input(lake.request())


def test_the_model_that_holds_the_output_is_named_among_several(lake: Lake) -> None:
    model = {"uses": "model:score", "outputs": {"score": "float32"}, "features": ["x"]}
    lake.ready(model=None, models=[{"name": "a", "path": "a.bin", **model}, {"name": "b", "path": "./", **model}])
    (lake.folder / "a.bin").write_text("1")
    with pytest.raises(JobError, match=r"^models\[1\]\.path: .* holds output\.uri .* in models\[1\]\.path$"):
        check_without_input(lake.request())


def test_a_model_in_a_bucket_may_not_hold_the_output(lake: Lake) -> None:
    request = lake.ready().request()
    output = request.job.output.model_copy(update={"uri": "s3://b/m/out"})
    model = request.job.models[0].model_copy(update={"path": "s3://b/m"})
    job = request.job.model_copy(update={"models": (model,), "output": output})
    with pytest.raises(JobError, match=r"^model\.path: s3://b/m holds output\.uri s3://b/m/out: each new file"):
        check_without_input(replace(request, job=job))


def test_a_folder_whose_name_only_begins_alike_is_another(lake: Lake) -> None:
    (lake.folder / "ou").mkdir(parents=True)
    (lake.folder / "ou" / "weights").write_text("1")
    check_without_input(lake.ready(model__path="ou/").request())
