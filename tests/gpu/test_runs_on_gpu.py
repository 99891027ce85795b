"""Whole runs of actors with a GPU on a real Ray cluster: where they compute, what they share, and what they survive."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from lazily import lazily
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import NightjarError
from support import ONCE, Lake, wait_until

torch = lazily("torch")

pytestmark = [
    pytest.mark.skipif("not torch.cuda.is_available()", reason="torch sees no GPU here"),
    pytest.mark.usefixtures("ray_gpu"),
]

DOUBLES = """
import os
from pathlib import Path

import torch

class Model:
    def __init__(self):
        self.two = torch.full((), 2.0, device="cuda")
        self.device = str(self.two.device)

    def __call__(self, batch):
        (Path(__LIVE__) / f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}.sign").touch()
        return {"score": (torch.from_numpy(batch["x"]).cuda() * self.two).cpu().numpy()}
"""

NET = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
"""

HUNGRY = """
import torch

BYTES = 200 << 20

class Model:
    \"\"\"Takes 200 MiB of the GPU for each row of a batch.\"\"\"

    def __call__(self, batch):
        scratch = torch.empty(len(batch["x"]) * BYTES, dtype=torch.uint8, device="cuda")
        assert scratch.numel() == len(batch["x"]) * BYTES
        return {"score": (torch.from_numpy(batch["x"]).cuda() * 2).cpu().numpy()}
"""

ASSERTS = """
import torch

class Model:
    \"\"\"Looks rows up in a table without a place for 5300: the kernel's own check fails, and fails for good.\"\"\"

    def __init__(self):
        self.table = torch.arange(0, 16000, 2, device="cuda", dtype=torch.float32)

    def __call__(self, batch):
        places = torch.from_numpy(batch["x"]).long().cuda()
        places[places == 5300] = 1 << 40
        return {"score": self.table[places].cpu().numpy()}
"""

KILLED_ONCE = (
    ONCE
    + """
import os, signal
import torch

class Model:
    \"\"\"Fills most of the GPU, and is killed once in the middle of a shard.\"\"\"

    def __init__(self):
        self.most = torch.ones(int(torch.cuda.mem_get_info()[1] * 0.7), dtype=torch.uint8, device="cuda")

    def __call__(self, batch):
        if 5300 in batch["x"] and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"score": (torch.from_numpy(batch["x"]).cuda() * 2).cpu().numpy()}
"""
)

PREPARES = """
def prepare(batch):
    return {"x": batch["x"] + 1}
"""


def processes_on_gpu() -> list[int]:
    """Processes other than this one that hold memory of a GPU."""
    asked = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return [int(pid) for pid in found if pid.isdigit() and int(pid) != os.getpid()]


def gpu_is_free() -> None:
    wait_until(lambda: not processes_on_gpu(), 60, "no process on the GPU")


def doubled(lake: Lake, without: tuple[int, ...] = ()) -> None:
    rows = lake.published()
    assert rows["id"].tolist() == [row for row in range(8000) if row not in without]
    np.testing.assert_array_equal(rows["score"], rows["id"].to_numpy(np.float32) * 2)


@pytest.mark.parametrize("placement", ["fused", "staged"])
def test_a_net_scores_on_the_gpu_what_it_scores_on_the_cpu(lake: Lake, placement: str) -> None:
    """With a preprocess beside it: in a thread of the actor, or in workers that have no GPU. The GPU is free after."""
    lake.write_model(NET + PREPARES)
    module: dict[str, object] = {}
    exec(NET, module)
    torch.save(module["build"]().state_dict(), lake.folder / "net.pth")  # type: ignore[operator]
    changes = {
        "model__uses": "torch",
        "model__path": "net.pth",
        "model__options": {"model": "model:build"},
        "preprocess": {"uses": "model:prepare", "placement": placement},
        "resources": {"actors": 1, "gpus": 1},
    }
    ran = lake.ready(**changes).run()
    assert ran.scored.device == "cuda:0"
    on_gpu = lake.published()
    gpu_is_free()

    lake.write_job(**{**changes, "resources": {"actors": 1}, "output": {"uri": "cpu/"}})
    lake.run(engine=LOCAL, run_id="cpu")
    rows = lake.published("cpu")
    assert on_gpu["id"].tolist() == rows["id"].tolist() == list(range(8000))
    np.testing.assert_allclose(on_gpu["score"], rows["score"], rtol=2e-3, atol=1e-3)


def test_two_actors_share_one_gpu(lake: Lake) -> None:
    """`gpus: 0.5` gives each half of it in Ray's books, and both see the same one."""
    lake.write_model(DOUBLES)
    lake.ready(model__uses="model:Model", resources={"actors": 2, "gpus": 0.5}).run()
    doubled(lake)
    signs = [path.stem.split() for path in lake.folder.glob("*.sign")]
    assert len({pid for pid, _ in signs}) >= 2
    assert {gpus for _, gpus in signs} == {"0"}


def test_the_local_engine_scores_on_the_gpu_too(lake: Lake) -> None:
    lake.write_model(DOUBLES.replace("os.environ['CUDA_VISIBLE_DEVICES']", "'0'"))
    ran = lake.ready(model__uses="model:Model", resources={"actors": 1, "gpus": 1}).run(engine=LOCAL)
    assert ran.scored.device == "cuda:0"
    doubled(lake)


def test_a_batch_too_large_for_the_gpu_is_halved_and_no_row_is_lost(lake: Lake) -> None:
    lake.write_model(HUNGRY)
    lake.ready(model__uses="model:Model", model__batch_size=1000, resources={"actors": 1, "gpus": 1})
    ran = lake.run()
    doubled(lake)
    assert ran.scored.progress.counts.rows_quarantined == 0
    said = "memory did not suffice for micro-batches of more than"
    assert any(said in text for text in ran.scored.warnings), ran.scored.warnings


def test_a_row_that_fails_the_check_of_a_kernel_is_found_and_the_device_is_had_anew(lake: Lake) -> None:
    """After a device-side assert a process can use its GPU no more; a new one can. No other row is lost."""
    lake.write_model(ASSERTS)
    lake.ready(model__uses="model:Model", resources={"actors": 1, "gpus": 1}).run()
    doubled(lake, without=(5300,))
    lost = lake.quarantined()
    assert [row["id"] for row in lost["input"]] == [5300]
    assert "device-side assert" in lost["message"].iloc[0]
    gpu_is_free()


def test_an_actor_killed_with_the_gpu_full_is_replaced_by_one_that_fills_it_again(lake: Lake) -> None:
    lake.write_model(KILLED_ONCE)
    ran = lake.ready(model__uses="model:Model", resources={"actors": 1, "gpus": 1}).run()
    doubled(lake)
    assert ran.scored.progress.counts.rows_quarantined == 0
    assert [record["cause"] for record in lake.records() if record["t"] == "failed"] == ["ProcessDied"]
    gpu_is_free()


def test_more_gpus_than_there_are_is_refused_with_the_numbers(lake: Lake) -> None:
    lake.write_model(DOUBLES)
    there = torch.cuda.device_count()
    with pytest.raises(
        NightjarError, match=rf"resources: 1 actors of .* {there + 1} GPUs each do not fit: .*{there} GPUs"
    ):
        lake.ready(model__uses="model:Model", resources={"actors": 1, "gpus": there + 1}).run()
