"""Signed URLs: the location is shown and stored, the query stays with the processes of the run."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar.inference.errors import JobError, Transient
from nightjar.inference.job.file import parse_job
from nightjar.inference.predictors import check_keys
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.locations import location, queries, signed
from nightjar.inference.storage.registries import pinned

PLACE = "https://lake.example/a.parquet"
SECRET, AGAIN = "0123456789abcdef", "fedcba9876543210"


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F1&X-Amz-Date=1&X-Amz-Expires=60&X-Amz-Signature={}",
        "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Credential=me&X-Goog-Signature={}",
        "AWSAccessKeyId=AK&Expires=1795856470&Signature={}",
        "Expires=1795856470&Signature={}&Key-Pair-Id=K1",
        "sv=2024-11-04&st=1&se=2&sr=b&sp=r&spr=https&skoid=1&sktid=2&skt=3&ske=4&sks=b&skv=5&sig={}",
    ],
    ids=["S3", "Google", "S3 of old", "CloudFront", "Azure"],
)
def test_a_signature_leaves_nothing_and_another_one_is_of_the_same_file(query: str) -> None:
    url = f"{PLACE}?{query.format(SECRET)}"
    assert location(url) == location(location(url)) == PLACE
    assert signed(PLACE) == url
    renewed = f"{PLACE}?{query.format(AGAIN)}"
    assert location(renewed) == PLACE
    assert signed(PLACE) == renewed


def test_other_parameters_tell_files_apart_and_are_not_shown() -> None:
    """Nobody knows whether one is a secret or names the file; beside a signature it is as without."""
    one, other = (location(f"https://lake.example/get?id={number}&token={SECRET}") for number in (1, 2))
    assert one != other
    assert one.startswith("https://lake.example/get?sha256=")
    assert SECRET not in one
    assert location(one) == one
    both = {location(f"https://lake.example/get?id=1&X-Amz-Signature={each}") for each in (SECRET, AGAIN)}
    assert len(both) == 1
    assert both != {"https://lake.example/get"}


@pytest.mark.parametrize(
    "uri", ["/data/what?.parquet", "s3://lake/2026-11-1?/", "postgresql://me@host/db?sslmode=require"]
)
def test_a_pattern_and_a_database_are_left_as_they_are(uri: str) -> None:
    assert location(uri) == uri


def test_another_process_of_the_run_has_the_queries() -> None:
    location(f"{PLACE}?X-Amz-Signature={SECRET}")
    code = (
        "import pickle, sys; pickle.load(sys.stdin.buffer); "
        "from nightjar.inference.storage.locations import queries; print(dict(queries()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(LakeStorage()), capture_output=True)
    assert ended.stdout.decode().strip() == str(dict(queries()))


def test_a_message_about_a_place_does_not_show_its_signature(tmp_path: Path) -> None:
    def said(uri: str | list[str]) -> str:
        content = {
            "name": "t",
            "input": {"uri": uri},
            "model": {"uses": "m:f", "outputs": {"score": "float32"}},
            "output": {"uri": "out"},
        }
        with pytest.raises(JobError) as caught:
            parse_job(content, tmp_path / "job.yaml")
        return str(caught.value)

    query = f"?sv=1&sig={SECRET}"
    places = ("https://lake.example/folder/", "wasbs://c@lake.example/a", "az://c/a", "https://x/*.csv", "ftp://x/a")
    for place in places:
        assert SECRET not in said(place + query), place
    assert "az://c/a has a signature behind it, which only https:// has; write the signed URL" in said(
        "az://c/a" + query
    )
    assert f"'{PLACE}' is listed twice" in said([PLACE + query, PLACE + query])


def test_the_endpoint_of_a_model_has_no_query(tmp_path: Path) -> None:
    """It is one of the keys that change outputs, which are published."""
    content = {
        "name": "t",
        "input": {"uri": "in"},
        "model": {
            "uses": "openai",
            "url": f"http://h/v1?key={SECRET}",
            "served_model": "m",
            "outputs": {"a": "string"},
        },
        "output": {"uri": "out"},
    }
    job = parse_job(content, tmp_path / "job.yaml")
    with pytest.raises(JobError, match=r"model\.url: has a query; leave them out") as caught:
        check_keys(job)
    assert SECRET not in str(caught.value)


def test_a_password_in_the_address_of_mlflow_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client names the address that the environment gives it."""
    pytest.importorskip("mlflow", reason="pip install 'nightjar-batch[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:9/")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(Transient, match=r"API request to http://\*\*\*@127\.0\.0\.1:9/") as caught:
        pinned("models:/birds@champion")
    assert SECRET not in str(caught.value)
