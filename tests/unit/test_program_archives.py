"""What the archive of an exported program may hold: it is read before anything in it can run."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from predicting import MakeJob, export, jobs_in

from lazily import lazily
from nightjar.inference.errors import JobError
from nightjar.inference.predictors import load_scorer
from nightjar.inference.predictors.archive import inspect_program

torch = lazily("torch")


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


@pytest.fixture
def torch_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    with jobs_in(tmp_path, monkeypatch) as make:
        yield partial(make, uses="torch", path="m.pt2")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(export(tmp_path / "good.pt2", lambda x: x[:, 0], torch.ones(4, 2), layer=True))


def rebuilt(source: Path, target: Path, change: Callable[[dict[str, bytes]], None], root: str = "good") -> Path:
    """The archive with some members changed, as an attacker would write it."""
    with zipfile.ZipFile(source) as archive:
        members = {info.filename.partition("/")[2]: archive.read(info) for info in archive.infolist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{root}/{name}", content)
    return target


def torch_saved(payload: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()


def hostile_samples(members: dict[str, bytes], proof: Path) -> None:
    members["data/sample_inputs/model.pt"] = torch_saved(((Hostile(proof),), {}))


def hostile_bare(members: dict[str, bytes], proof: Path) -> None:
    members["data/sample_inputs/model.pt"] = pickle.dumps(Hostile(proof), 2)


def hostile_weights(members: dict[str, bytes], proof: Path) -> None:
    name = "data/weights/model_weights_config.json"
    members[name] = members[name].replace(b'"use_pickle": false', b'"use_pickle": true')
    members["data/weights/weight_0"] = torch_saved(Hostile(proof))


def hostile_old_weights(members: dict[str, bytes], proof: Path) -> None:
    members["data/weights/model.pt"] = torch_saved(Hostile(proof))


def hostile_constant(members: dict[str, bytes], proof: Path) -> None:
    members["data/constants/opaque_obj_0"] = pickle.dumps(Hostile(proof))
    members["data/constants/model_constants_config.json"] = (
        b'{"config": {"c": {"path_name": "opaque_obj_0", "is_param": false, "use_pickle": true, "tensor_meta": null}}}'
    )


HOSTILE = [hostile_samples, hostile_bare, hostile_weights, hostile_old_weights, hostile_constant]


@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_an_archive_that_would_run_code_is_refused_before_it_is_loaded(
    torch_job: MakeJob, program: Path, tmp_path: Path, attack: Callable[[dict[str, bytes], Path], None]
) -> None:
    """Each of these does run its payload when torch loads it unchecked: the test proves that too."""
    proof = tmp_path / "proof"
    bad = rebuilt(program, tmp_path / "bad.pt2", lambda members: attack(members, proof))
    with pytest.raises(JobError, match=r"^model\.path: \S+/models/bad\.pt2: it holds .*model\.allow_pickle: true"):
        load_scorer(torch_job(path="models/bad.pt2"), str(bad))
    assert not proof.exists()
    with contextlib.suppress(JobError):  # the payload runs, and torch then finds no tensor in its place
        load_scorer(torch_job(allow_pickle=True), str(bad))
    assert proof.exists()


def test_a_program_that_cannot_be_loaded_is_named_as_the_job_names_it(
    torch_job: MakeJob, program: Path, tmp_path: Path
) -> None:
    """A process loads its own copy, whose path helps nobody."""
    copy = rebuilt(program, tmp_path / "copy.pt2", lambda members: members.update({"models/model.json": b"{}"}))
    with pytest.raises(JobError, match=r"^model\.path: torch cannot load \S+/models/m\.pt2: ") as refused:
        load_scorer(torch_job(path="models/m.pt2"), str(copy))
    assert "copy.pt2" not in str(refused.value)


def test_native_code_is_refused(program: Path, tmp_path: Path) -> None:
    bad = rebuilt(program, tmp_path / "b.pt2", lambda m: m.update({"data/aotinductor/model/x.so": b"\x7fELF"}))
    with pytest.raises(JobError, match="native code"):
        inspect_program(str(bad))


def test_normal_programs_pass_with_parameters_buffers_and_constants(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
            self.norm = torch.nn.BatchNorm1d(2)
            self.plain = torch.arange(2.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shifted: torch.Tensor = self.norm(self.layer(x.bfloat16()).float()) + self.plain
            return shifted + torch.tensor([1.0, 2.0])

    exported = torch.export.export(Model().eval(), (torch.ones(4, 2),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(exported, tmp_path / "m.pt2", extra_files={"note.txt": "mine"})
    inspect_program(str(tmp_path / "m.pt2"))


def test_two_members_of_one_name_are_refused_as_torch_and_python_would_read_different_ones(
    program: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(program.read_bytes())
    rebuilt(program, bad, lambda members: members.update({"data/Sample_inputs/model.pt": b""}))
    with pytest.raises(JobError, match="two of its members have the same name"):
        inspect_program(str(bad))


def test_a_second_zip_directory_is_refused(program: Path, tmp_path: Path) -> None:
    """Python's reader shifts offsets over bytes put in front, torch's does not."""
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(program.read_bytes() * 2)
    with pytest.raises(JobError, match=r"model\.path: .*directory is not where it should be"):
        inspect_program(str(bad))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04", b"PK\x05\x06" + bytes(18)])
def test_an_unreadable_file_names_the_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(JobError, match=r"model\.path: .*m\.pt2 is not a readable \.pt2"):
        inspect_program(str(tmp_path / "m.pt2"))


def test_every_truncation_of_a_program_names_the_key(program: Path, tmp_path: Path) -> None:
    whole = program.read_bytes()
    for keep in range(0, len(whole), max(1, len(whole) // 50)):
        (tmp_path / "cut.pt2").write_bytes(whole[:keep])
        with pytest.raises(JobError, match=r"model\.path"):
            inspect_program(str(tmp_path / "cut.pt2"))


def test_another_kind_of_file_is_told_how_to_export(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1).state_dict(), tmp_path / "m.pt")
    with pytest.raises(JobError, match=r"model\.path: .*m\.pt is not a \.pt2 .*torch\.export\.save"):
        inspect_program(str(tmp_path / "m.pt"))
    (tmp_path / "m.pt").rename(tmp_path / "m.pt2")
    with pytest.raises(JobError, match=r"holds no exported program; make one with torch\.export"):
        inspect_program(str(tmp_path / "m.pt2"))
    with pytest.raises(JobError, match=r"model\.path: .*gone\.pt2 .*No such file"):
        inspect_program(str(tmp_path / "gone.pt2"))


def test_inspecting_does_not_import_torch(program: Path) -> None:
    code = (
        "import sys; from nightjar.inference.predictors.archive import inspect_program; "
        f"inspect_program({str(program)!r}); assert not {{'torch', 'pandas', 'ray', 'boto3'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_option_the_torch_adapter_does_not_know_is_named(torch_job: MakeJob, program: Path) -> None:
    with pytest.raises(
        JobError, match=r"model\.options\.half: the torch adapter knows only the options model, .*batch_format"
    ):
        load_scorer(torch_job(options={"half": True}), str(program))
