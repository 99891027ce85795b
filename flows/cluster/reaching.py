"""Checks a Ray cluster that somebody else started: it answers, speaks Ray's protocol, and admits this machine."""

from __future__ import annotations

import logging
import os
import queue
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import grpc
import psutil
from ray.exceptions import RayError

from nightjar.flows.cluster.internals import SIGNS_IN, sign_in
from nightjar.flows.cluster.starting import essence
from nightjar.inference.errors import ClusterError

_REACH_S = 10.0
_AGAIN_S = 2.5
"""Seconds that a server has to answer after it refused to speak gRPC; gRPC asks it again after about one."""

_READY, _FAILED = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE

_TRIES = "3"
"""How often Ray tries to reach a cluster's head; each try may take most of a minute."""

_NO_PROXY = [("grpc.enable_http_proxy", 0)]
"""Connect without a proxy, as Ray itself does."""


def reach(address: str) -> None:
    """Fail at once if nobody listens at the address, and sign in as `ray start` would. Ray itself would wait for
    minutes.

    Raises:
        ClusterError: No run can use the address.
    """
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", _TRIES)
    # A head uses the token that it finds on its machine; a client uses it only when told to.
    logging.getLogger(SIGNS_IN).setLevel(logging.ERROR)
    try:
        sign_in()
    except RayError as error:
        raise unusable(address, essence(error)) from error
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise unusable(address, str(error)) from error
    if os.environ.get("RAY_USE_TLS", "0") == "0":
        _greet(address, host, port)
    if not address.startswith("ray://") and next(raylets(), None) is None:
        # Ray itself would search for a node for a minute.
        raise ClusterError(
            f"--ray {address}: this machine is not a node of a Ray cluster, and only a node can drive a run: join it "
            f"without capacity (`ray start --address={address} --num-cpus=0`), or go through ray://{host}:10001"
        )


def _greet(address: str, host: str, port: str) -> None:
    """Check that the server speaks gRPC, as Ray's head and client server do; with any other Ray would try for
    minutes.
    """
    states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
    deadline = time.monotonic() + _REACH_S
    with grpc.insecure_channel(f"{host}:{port}", options=_NO_PROXY) as channel:
        channel.subscribe(states.put, try_to_connect=True)
        with suppress(queue.Empty):
            while (state := states.get(timeout=max(0, deadline - time.monotonic()))) != _READY:
                if state == _FAILED:
                    deadline = min(deadline, time.monotonic() + _AGAIN_S)
            return
        raise unusable(address, "something listens there, but it does not speak Ray's protocol")


def raylets() -> Iterator[psutil.Process]:
    """Ray's node processes on this machine."""
    return (each for each in psutil.process_iter(["name", "cmdline"]) if each.info["name"] == "raylet")


def unusable(address: str, why: str) -> ClusterError:
    """The error for a cluster that cannot be used, in one sentence with the cause."""
    return ClusterError(
        f"no usable Ray cluster at {address}: {why.rstrip('.')}. Start one with `ray start --head`, check the address, "
        "its Ray and Python versions and its token (RAY_AUTH_MODE, RAY_AUTH_TOKEN), or leave --ray out"
    )
