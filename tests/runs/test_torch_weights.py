"""Runs whose model is weights for a module that the job's code makes: code and torch are part of the identity."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import version

import pytest

from lazily import lazily
from nightjar.inference.errors import JobError
from nightjar.inference.identity.identity import package_files
from nightjar.inference.input.plan import discover
from nightjar.inference.run.request import identity_of
from nightjar.inference.run.user_code import inspect_code
from support import Lake

torch = lazily("torch")

NET = """
import torch
from parts import FACTOR

class Net(torch.nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=bias)

    def forward(self, x):
        return self.layer(x) * FACTOR
"""


@pytest.fixture
def weighed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake whose model is twice x, and 1 more."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    lake.ready()
    (lake.folder / "net.py").write_text(NET)
    (lake.folder / "parts.py").write_text("FACTOR = 1\n")
    torch.save({"layer.weight": torch.tensor([[2.0]]), "layer.bias": torch.tensor([1.0])}, lake.folder / "net.pt")
    describe(lake)
    return lake


def fingerprint(lake: Lake) -> str:
    request = lake.request()
    return identity_of(request, discover(request.storage, request.job).schema).fingerprint


def describe(lake: Lake, **options: object) -> None:
    lake.write_job(
        model__uses="torch", model__path="net.pt", model__options={"model": "net:Net", **options}, identity="strict"
    )


def test_a_run_scores_with_the_module_and_its_code_is_identity(weighed: Lake) -> None:
    """Also a module that the factory's imports; the code is that of the snapshot."""
    weighed.run()
    found = weighed.published()
    assert found["score"].tolist() == [2 * each + 1 for each in range(8000)]
    scoring = weighed.request().scoring
    assert {"net.py", "parts.py"} <= {file.name for file in scoring.code.files}
    assert scoring.packages == {"torch": version("torch")}
    assert package_files(weighed.request().job, "torch") == [], "only its version counts"
    assert weighed.run().scored.progress.scored_rows == 0
    (weighed.folder / "parts.py").write_text("FACTOR = 10\n")
    importlib.invalidate_caches()
    for name in ("net", "parts"):
        sys.modules.pop(name, None)
    assert weighed.run().scored.progress.scored_rows == 8000
    assert weighed.published()["score"].tolist() == [20 * each + 10 for each in range(8000)]


def test_its_options_are_identity(weighed: Lake) -> None:
    before = fingerprint(weighed)
    describe(weighed, dtype="bfloat16")
    assert fingerprint(weighed) != before


def test_a_factory_is_inspected_before_anything_starts(weighed: Lake) -> None:
    """As any code of the user's: imported in a process of its own, and asked for its keywords."""
    assert inspect_code(weighed.request()) == ""
    describe(weighed, args={"bais": False})
    with pytest.raises(JobError, match=r"^model\.options\.args: net:Net cannot be called: .*'bais'"):
        inspect_code(weighed.request())
    weighed.write_job(model__uses="torch", model__path="net.pt", model__options={"model": "nte:Net"})
    with pytest.raises(JobError, match=r"^model\.options\.model: there is no module 'nte' in .*; did you mean 'net'"):
        weighed.request()
