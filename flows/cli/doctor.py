"""`nightjar doctor`: checks what a run needs before the night, one line each, with a remedy if one is needed."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires, version

import psutil
from packaging.requirements import Requirement
from prefect.settings import PREFECT_API_URL

from nightjar.flows.cluster import named
from nightjar.flows.cluster.connection import describe_cluster
from nightjar.flows.prefect_api.api import ask_api, without_user
from nightjar.inference.errors import NightjarError
from nightjar.inference.identity.packages import installed_packages
from nightjar.inference.predictors.adapter import frameworks

_SHOWN = ("ray", "prefect", "prefect-ray", "pyarrow", "boto3")

_SHM_BYTES = 512 << 20
"""The least /dev/shm, in bytes, with which Ray works well. By default a container has only 64 MB."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    what: str
    """What was checked, as `versions`, `Prefect`, `Ray`, `memory` or `GPUs`."""

    ok: bool
    """Whether nothing is wrong."""

    found: str
    """What was found, or why it could not be looked up, for people."""

    remedy: str = ""
    """What to do; empty if nothing is wrong, or if `found` says what to do."""


def diagnose(ray: str | None) -> Iterator[Finding]:
    """Check everything. All checks run, whatever one finds."""
    yield _versions()
    yield _prefect()
    yield _cluster(ray)
    yield _memory()
    yield Finding("GPUs", True, "; ".join(filter(None, (framework.devices() for framework in frameworks()))))


def _versions() -> Finding:
    wanted = [each for each in map(Requirement, requires("nightjar-batch") or ()) if each.marker is None]
    there, wrong = installed_packages(each.name for each in wanted), []
    for each in wanted:
        if each.name not in there or not each.specifier.contains(there[each.name], prereleases=True):
            wrong.append(f"{each.name} {there.get(each.name, 'is not installed')} (wants {each.specifier})")
    libraries = (name for framework in frameworks() for name in framework.libraries)
    shown = ", ".join(map(" ".join, installed_packages([*_SHOWN, *libraries]).items()))
    found = f"nightjar {version('nightjar-batch')} on Python {platform.python_version()}; {shown}"
    if wrong:
        found += f"; not supported: {', '.join(wrong)}"
    return Finding("versions", not wrong, found, "pip install -c constraints.txt ." if wrong else "")


def _prefect() -> Finding:
    url = PREFECT_API_URL.value()
    if not url:
        return Finding("Prefect", True, "PREFECT_API_URL is not set: each command starts a server of its own")
    try:
        theirs = ask_api(url)
    except NightjarError as error:
        return Finding("Prefect", False, str(error))
    if not theirs:
        return Finding("Prefect", True, f"{without_user(url)}: Prefect Cloud")
    ours = version("prefect")
    same = theirs.split(".")[:2] == ours.split(".")[:2]
    remedy = "" if same else f"run server and client on one minor version: pip install prefect=={theirs}"
    return Finding("Prefect", same, f"{without_user(url)}: version {theirs}, here {ours}", remedy)


def _cluster(address: str | None) -> Finding:
    try:
        return Finding("Ray", True, describe_cluster(named(address)))
    except NightjarError as error:
        return Finding("Ray", False, str(error), "see docs/clusters.md")


def _memory() -> Finding:
    """Check memory and disk. Ray keeps its objects in shared memory, and with too little of it uses slow files."""
    total, disk = psutil.virtual_memory().total, shutil.disk_usage("/tmp")
    found = f"{total / 2**30:.0f} GiB memory, {disk.free / 2**30:.0f} GiB free in /tmp"
    if sys.platform == "linux":
        shared = shutil.disk_usage("/dev/shm").total
        found += f", {shared / 2**30:.1f} GiB /dev/shm"
        if shared < _SHM_BYTES:
            remedy = "give the container more: docker run --shm-size, or shm_size in compose"
            return Finding("memory", False, found, remedy)
    return Finding("memory", disk.free > 2**30, found, "" if disk.free > 2**30 else "free some space in /tmp")
