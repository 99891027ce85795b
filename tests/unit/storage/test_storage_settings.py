"""What a process captures of its environment, to reach the storage from another machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightjar.inference.errors import Denied, StorageError
from nightjar.inference.storage.credentials import Keys, StorageSettings
from nightjar.inference.storage.lake import LakeStorage


@pytest.mark.parametrize(
    ("root", "key"), [("gs://nobody", "GOOGLE_APPLICATION_CREDENTIALS"), ("az://nobody", "AZURE_STORAGE_ACCOUNT_KEY")]
)
def test_a_machine_without_credentials_is_told_what_to_set(
    root: str, key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine that has no role does not answer, or refuses."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "named")
    with pytest.raises(StorageError, match=rf"{root}.*: no credentials found, nor a role of this machine: .*{key}"):
        list(LakeStorage(StorageSettings(retry_s=1)).list(root + "/a/"))


class TestSettings:
    """`StorageSettings.from_environment` captures what boto3 would find, for workers elsewhere."""

    @pytest.fixture(autouse=True)
    def _bare(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def test_nothing_set_is_nothing_captured(self) -> None:
        """Not even the endpoint that boto3 itself would use."""
        assert StorageSettings.from_environment() == StorageSettings()

    def test_variables_are_captured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
        monkeypatch.setenv("AWS_REGION", "eu-north-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        assert StorageSettings.from_environment() == StorageSettings(
            "http://127.0.0.1:1", "eu-north-1", None, "key", "secret", "token"
        )

    def test_a_profile_is_captured_with_its_endpoint(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Its keys travel; the worker needs no configuration file."""
        (tmp_path / "config").write_text(
            "[profile lake]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:2\n"
            "aws_access_key_id = key\naws_secret_access_key = secret\n"
        )
        monkeypatch.setenv("AWS_PROFILE", "lake")
        assert StorageSettings.from_environment() == StorageSettings(
            "http://127.0.0.1:2", "eu-west-1", "lake", "key", "secret", None
        )

    def test_a_role_is_left_to_the_worker(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Its credentials expire before the night is over, so only the profile's name travels."""
        (tmp_path / "config").write_text(
            "[profile base]\naws_access_key_id = key\naws_secret_access_key = secret\n"
            "[profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = base\n"
        )
        monkeypatch.setenv("AWS_PROFILE", "role")
        assert StorageSettings.from_environment() == StorageSettings(profile="role")

    def test_an_unknown_profile_is_denied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_PROFILE", "nope")
        with pytest.raises(Denied, match=r"nope.*AWS_PROFILE"):
            StorageSettings.from_environment()

    def test_no_credentials_say_what_to_set(self) -> None:
        with pytest.raises(Denied, match=r"s3://bucket.*AWS_ACCESS_KEY_ID"):
            LakeStorage().read("s3://bucket/x")


def test_why_there_are_no_keys_is_known_until_there_are_some() -> None:
    """Other threads read it while new keys are asked for."""
    keys, seen = Keys(StorageSettings(access_key="a", secret_key="b"), "s3://b"), []
    found, keys.trouble = keys._found, Denied("not signed in")

    class Slow:
        def get_frozen_credentials(self) -> object:
            seen.append(keys.trouble)
            return found.get_frozen_credentials()

    keys._found = Slow()
    assert keys()["access_key_id"] == "a"
    assert [type(each) for each in (*seen, keys.trouble)] == [Denied, type(None)]
