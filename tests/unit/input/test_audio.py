"""Audio: samples as other readers have them, and what is wrong with a file costs its row."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError
from nightjar.inference.input.sources import audio
from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.job.file import parse_job
from nightjar.inference.records import Piece
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.tensors import to_arrays
from support import Lake

soundfile = pytest.importorskip("soundfile", reason="needs soundfile, of the extra `audio`")
STORAGE = LakeStorage()
RATE = 8000
TIME = np.arange(RATE) / RATE
LEFT = np.sin(2 * np.pi * 440 * TIME) * 0.5
STEREO = np.stack([LEFT, LEFT / 2], axis=1)


def as_wave(samples: npt.NDArray[np.float64], rate: int = RATE) -> bytes:
    """16 bits, written by Python's own module."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return out.getvalue()


def read(path: Path, **options: Any) -> RowsRead:
    given = {"uri": str(path), "format": "audio", "options": options}
    model = {"uses": "m:f", "outputs": {"y": "float64"}}
    job = parse_job({"name": "t", "input": given, "model": model, "output": {"uri": "out"}}, path.parent / "job.yaml")
    entry = STORAGE.stat(str(path))
    found = describe(STORAGE, job, entry)
    return read_piece(STORAGE, job, Piece(entry.uri, entry.size, entry.version, 0, 1, (0, 1)), found.schema)


def test_a_wave_is_what_pythons_own_module_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(as_wave(STEREO))
    with wave.open(str(path)) as file:
        theirs = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2) / np.float32(32768)
    both = read(path, mono=False).table
    (values,) = to_arrays(both["samples"].chunk(0))
    assert np.array_equal(values, theirs)
    one = read(path).table
    assert np.allclose(one["samples"][0].as_py(), theirs.mean(axis=1), atol=1e-7)
    assert (one["sampling_rate"].to_pylist(), one["path"].to_pylist()) == ([RATE], [str(path)])


@pytest.mark.parametrize(("kind", "error"), [("FLAC", 1e-4), ("OGG", 0.05), ("MP3", 0.1)])
def test_other_formats_hold_the_same_sound(tmp_path: Path, kind: str, error: float) -> None:
    path = tmp_path / f"a.{kind.lower()}"
    soundfile.write(path, LEFT, RATE, format=kind)
    found = np.array(read(path).table["samples"][0].as_py())
    assert len(found) == len(LEFT)
    assert np.abs(found - LEFT)[200:-200].max() < error


def test_sound_is_resampled_to_the_same_sound(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(as_wave(LEFT))
    table = read(path, sample_rate=16000).table
    found = np.array(table["samples"][0].as_py())
    assert (len(found), table["sampling_rate"].to_pylist()) == (16000, [16000])
    wanted = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000) * 0.5
    assert np.abs(found - wanted)[200:-200].max() < 1e-3


def resized(content: bytes, size: int) -> bytes:
    """A WAV file with another size of its sound."""
    at = content.index(b"data") + 4
    return content[:at] + size.to_bytes(4, "little") + content[at + 4 :]


def endless(content: bytes) -> bytes:
    """A FLAC file whose number of samples is not known: 36 bits of its first block."""
    return content[:21] + bytes([content[21] & 0xF0]) + bytes(4) + content[26:]


@pytest.mark.parametrize("rate", [8000, 24000, 44100])
def test_an_mp3_stream_without_a_number_of_frames_is_read_whole(tmp_path: Path, rate: int) -> None:
    """libsndfile guesses the number from the first bit rate: too small for one file, too large for another."""
    loud = np.random.default_rng(1).normal(size=2 * rate) * 0.2
    for name, sound in (("more", [loud, loud * 0]), ("less", [loud * 0, loud])):
        out = io.BytesIO()
        soundfile.write(out, np.concatenate(sound), rate, format="MP3")
        whole = out.getvalue()
        size = next(at for at in range(100, 1500) if whole[at : at + 2] == whole[:2])
        assert b"Xing" in whole[:size]
        tag = b"ID3\x04\x00\x00\x00\x00\x00\x05title"
        (tmp_path / f"{name}.mp3").write_bytes(
            tag + whole[size:5000] + b"junk" * 9 + whole[5000:] + b"TAG" + bytes(125)
        )
        (tmp_path / "whole.mp3").write_bytes(whole)
        wanted = read(tmp_path / "whole.mp3").table["samples"].to_numpy()[0]
        found = read(tmp_path / f"{name}.mp3").table["samples"].to_numpy()[0]
        # Without the first frame nobody knows how many samples the encoder put before the sound, and behind it.
        assert 1105 + len(wanted) <= len(found) < len(wanted) + 4000
        assert np.abs(found[1105 : 1105 + len(wanted)] - wanted)[: rate // 4].max() < 1e-3


def test_a_wave_without_sound_or_a_size_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "none.wav").write_bytes(as_wave(LEFT[:0]))
    (tmp_path / "stream.wav").write_bytes(resized(as_wave(LEFT), 0xFFFFFFFF))
    lengths = {path.name: len(read(path).table["samples"][0]) for path in tmp_path.glob("*.wav")}
    assert lengths == {"none.wav": 0, "stream.wav": 8000}


def test_what_is_wrong_with_a_file_is_its_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flac = io.BytesIO()
    soundfile.write(flac, LEFT, RATE, format="FLAC")
    bad = {
        "empty.wav": (b"", "an empty file, not audio"),
        "text.wav": (b"no sound at all", "text.wav: not audio that can be decoded: Format not recognised"),
        "cut.wav": (as_wave(LEFT)[:-999], "the audio was cut off: 999 bytes are missing"),
        "open.wav": (resized(as_wave(LEFT), 0), "its header says that it has no sound: whoever recorded it"),
        "stream.flac": (endless(flac.getvalue()), "cut off|not audio that can be decoded"),
        "cut.flac": (flac.getvalue()[:-3000], "cut off|cannot be decoded|not audio"),
    }
    for name, (content, said) in bad.items():
        (tmp_path / name).write_bytes(content)
        (failure,) = read(tmp_path / name).failures.values()
        assert failure.error == "InputCorrupt"
        assert any(each in failure.message for each in said.split("|")), failure.message
        assert name in failure.message
    monkeypatch.setattr(audio, "MOST_SAMPLES", 1000)
    (tmp_path / "long.wav").write_bytes(as_wave(LEFT))
    (failure,) = read(tmp_path / "long.wav").failures.values()
    assert f"more than 1,000 frames of 1 channels at {RATE:,} Hz, the most that are decoded" in failure.message
    monkeypatch.setattr(audio, "MOST_SAMPLES", 10_000)
    (failure,) = read(tmp_path / "long.wav", sample_rate=2 * RATE).failures.values()
    assert f"at {RATE:,} Hz, the most that are decoded" in failure.message, "16,000 samples, when they are resampled"
    assert not read(tmp_path / "long.wav", sample_rate=RATE // 2).failures


def test_options_that_cannot_be_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(as_wave(LEFT))
    with pytest.raises(JobError, match=r"input\.options\.sample_rate: write a whole number from 1 on, not '16k'"):
        read(tmp_path / "a.wav", sample_rate="16k")
    with pytest.raises(JobError, match=r"options\.rate: the audio format knows only the options sample_rate, mono"):
        read(tmp_path / "a.wav", rate=16000)


def test_a_folder_of_sound_is_scored_and_a_broken_file_is_in_the_quarantine(tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL)
    (tmp_path / "data").mkdir()
    for index in range(4):
        (tmp_path / f"data/{index}.wav").write_bytes(as_wave(LEFT[: 1000 * (index + 1)]))
    (tmp_path / "data/2.wav").write_bytes(b"RIFF")
    lake.write_model("def score(batch):\n    return {'score': [len(x) for x in batch['samples']]}\n")
    lake.write_job(
        input={"uri": "data/"}, model__features=["samples"], model__outputs={"score": "int64"}, carry=["path"],
        retry__max_quarantined=0.5,
    )  # fmt: skip
    lake.run()
    assert lake.published()["score"].tolist() == [1000, 2000, 4000]
    assert [path[-5:] for path in lake.quarantined()["_file"]] == ["2.wav"]
