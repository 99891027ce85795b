"""The image and the compose file, as far as they can be looked at without a container engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import ROOT

DOCKER = ROOT / "docker"
BIN = Path(sys.executable).parent


def config(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What compose makes of the file."""
    compose = BIN / "docker-compose"
    if not compose.exists():
        pytest.skip("no docker-compose: sh tests/system.sh .venv")
    command = [str(compose), "-f", str(DOCKER / "compose.yaml"), *words]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"], **(env or {})})


def filled(*words: str) -> dict[str, Any]:
    """The services, with the example's settings and these profiles."""
    done = config("--env-file", str(DOCKER / "env.example"), *words, "config")
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return services


def test_the_dockerfile_passes_its_linter() -> None:
    command = [str(BIN / "hadolint"), "--config", str(DOCKER / "hadolint.yaml"), str(DOCKER / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_is_pinned_not_root_and_has_a_health_check() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    assert all(re.search(r":\d+\.\d+\.\d+-", line) for line in re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    assert re.search(r"^USER (?!0)\d+", text, re.MULTILINE)
    assert "HEALTHCHECK" in text
    assert "-c constraints.txt" in text


def test_the_image_has_every_extra_that_a_job_may_use() -> None:
    """A job names a framework or a kind of table, and nobody can install a package in a running container.

    vLLM is not among them: it is gigabytes, and asks for older versions than the pinned ones.
    """
    extras = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.search(r'-c constraints\.txt "\.\[([\w,]+)\]"', (DOCKER / "Dockerfile").read_text())
    assert installed is not None
    assert set(installed[1].split(",")) == set(extras) - {"dev", "vllm"}


def test_what_the_image_copies_is_what_the_build_is_sent() -> None:
    """A file that .dockerignore leaves out cannot be copied."""
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().split("\n")
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for line in copied for name in line.split()} == sent
    assert all((DOCKER.parent / name).exists() for name in sent)


def test_compose_accepts_its_file() -> None:
    services = filled("--profile", "gpu")
    assert set(services) == {"postgres", "prefect", "s3", "ray-head", "ray-worker", "ray-gpu", "deploy", "worker"}
    assert "ray-gpu" not in filled(), "GPUs are a profile"


def test_without_secrets_nothing_starts() -> None:
    """Each is asked for by name, and the example has none that would do."""
    done = config("config")
    assert done.returncode != 0
    assert "set it in docker/.env" in done.stderr
    example = dict(
        line.split("=", 1) for line in (DOCKER / "env.example").read_text().splitlines() if re.match(r"[A-Z]", line)
    )
    for name in ("POSTGRES_PASSWORD", "PREFECT_AUTH", "RAY_TOKEN", "S3_SECRET"):
        assert "CHANGEME" in example[name]


def test_ports_are_bound_to_loopback() -> None:
    published = [port for service in filled("--profile", "gpu").values() for port in service.get("ports", [])]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_each_service_waits_for_the_health_of_what_it_needs() -> None:
    services = filled("--profile", "gpu")
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            once = needed == "deploy"
            assert how["condition"] == ("service_completed_successfully" if once else "service_healthy"), (name, needed)
            own = "healthcheck" in services[needed] or services[needed]["image"] == "nightjar"
            assert own, f"{needed} has no health check"


def test_no_container_may_gain_privileges() -> None:
    for name, service in filled("--profile", "gpu").items():
        if service["image"] == "nightjar":
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name


@pytest.mark.parametrize(
    ("role", "said"), [("ray", "raylet is not running"), ("worker", "Prefect worker is not running")]
)
def test_the_health_check_tells_what_is_missing(role: str, said: str) -> None:
    """In a container of that role where nothing runs."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, str(DOCKER / "healthcheck.py")]
    if os.geteuid() != 0 or subprocess.run([*command[:4], "true"], capture_output=True).returncode:
        pytest.skip("a process namespace of its own cannot be made here")
    done = subprocess.run(
        command, capture_output=True, text=True, env={"NIGHTJAR_ROLE": role, "RAY_HEAD": "127.0.0.1:9"}
    )
    assert (done.returncode, said in done.stdout) == (1, True), done.stdout
