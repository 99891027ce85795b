"""Audio: each file is one row, decoded by libsndfile (WAV, FLAC, OGG, MP3). What is wrong with a file costs that row.

The columns are `samples`, float32 from -1 to 1, one list of a file's mono sound, or frames × channels with `mono:
false`; `sampling_rate`, in samples a second; and `path`, the file's location. As they lie there, files are read by the
format `binary`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.sources.binary import OneRowSource
from nightjar.inference.input.sources.protocol import Description, needing
from nightjar.inference.job.options import flag, whole
from nightjar.inference.storage.protocol import Entry, Storage
from nightjar.inference.tensors import VariableShapedTensor, of_variable_shape

MOST_SAMPLES = 1 << 28
"""Sound of more samples, of all channels together, is not decoded: a small file may claim to have them. So many are
97 minutes of two channels at 48 kHz, and 1 GiB."""

_EXPANDED = {".wav": 2, ".flac": 4}
"""The assumed ratio of samples of float32 to a file's size."""

_ENDLESS = (1 << 63) - 1
"""The number of frames that libsndfile gives a FLAC stream that does not say how long it is. It cannot decode one."""

_LOSSY = 25
"""The same for compression that loses something."""


@dataclass(frozen=True)
class Audio(OneRowSource):
    """The source of audio. sample_rate: to which all sound is resampled. mono: whether channels are averaged."""

    sample_rate: int | None = None
    mono: bool = True

    name = "audio"
    suffixes = (".wav", ".flac", ".ogg", ".mp3")
    stands_back = True
    extra = "audio"
    options = (
        whole("sample_rate", "all sound is resampled to so many samples a second", "the file's", least=1),
        flag("mono", "one list of samples, the mean of the channels; else frames × channels", "`true`"),
    )

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Nothing is read. A file that is no sound is a row, too: reading it will say what it is.

        Raises:
            JobError: soundfile is not installed, or soxr, if it is needed.
        """
        _soundfile()
        if self.sample_rate is not None:
            _soxr()
        end = entry.uri.lower()[entry.uri.rfind(".") :]
        return Description(self.schema(), (1,), (max(1, entry.size * _EXPANDED.get(end, _LOSSY)),))

    def decoded(self, uri: str, data: bytes) -> dict[str, pa.Array]:
        samples, rate = self._samples(uri, data)
        return {"samples": self._array(samples), "sampling_rate": pa.array([rate], pa.int32())}

    def schema(self) -> pa.Schema:
        kind = pa.list_(pa.float32()) if self.mono else VariableShapedTensor(pa.float32())
        return pa.schema([("samples", kind), ("sampling_rate", pa.int32()), ("path", pa.string())])

    def _samples(self, uri: str, data: bytes) -> tuple[npt.NDArray[np.float32], int]:
        """Samples of shape (frames,) or (frames, channels), and how many there are in a second.

        Raises:
            InputCorrupt: It is no sound that can be decoded, or was cut off.
        """
        if not data:
            raise InputCorrupt(f"{uri}: an empty file, not audio")
        soundfile = _soundfile()
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                said, channels, rate = int(file.frames), int(file.channels), int(file.samplerate)
                if said == _ENDLESS:
                    raise InputCorrupt(
                        f"{uri}: it does not say how long it is, as a stream that was written into a pipe, and "
                        "libsndfile does not decode that; write it as a file, for example: ffmpeg -i OLD.flac NEW.flac"
                    )
                if said * channels * max(1.0, (self.sample_rate or rate) / rate) > MOST_SAMPLES:
                    raise InputCorrupt(
                        f"{uri}: {said:,} frames of {channels} channels at {rate:,} Hz, more than are decoded"
                    )
                samples = file.read(MOST_SAMPLES // channels, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            # What it says of itself begins with the name of the file, here an object in memory.
            said = getattr(error, "error_string", error)
            raise InputCorrupt(f"{uri}: not audio that can be decoded: {said}") from error
        if wrong := _wrong(data) or (f"it was cut off: {len(samples):,} of {said:,} frames" * (len(samples) < said)):
            raise InputCorrupt(f"{uri}: {wrong}")
        if self.mono:
            samples = samples.mean(axis=1, dtype=np.float32)
        if self.sample_rate is not None and self.sample_rate != rate:
            samples, rate = _soxr().resample(samples, rate, self.sample_rate), self.sample_rate
        return np.ascontiguousarray(samples, np.float32), rate

    def _array(self, samples: npt.NDArray[np.float32]) -> pa.Array:
        if not self.mono:
            return of_variable_shape(samples)
        return pa.ListArray.from_arrays(pa.array([0, len(samples)], pa.int32()), pa.array(samples))


SOURCE = Audio()


def _wrong(data: bytes) -> str:
    """What is wrong with a WAV file's length, in words: libsndfile reads what is there, up to what the header says."""
    if data[:4] not in {b"RIFF", b"RIFX", b"RF64"} or data[8:12] != b"WAVE":
        return ""
    size64 = 0
    for name, begin, size in _chunks(data, 12):
        if name == b"ds64":  # the sizes of a file that may have more than 4 GiB
            size64 = int.from_bytes(data[begin + 8 : begin + 16], "little")
        if name != b"data":
            continue
        if size >= 0xFFFFFFFF - 1:
            if data[:4] != b"RF64":
                return ""  # a stream, written where one cannot seek, has no length
            size = size64
        behind = len(data) - begin
        if size > behind:
            return f"the audio was cut off: {size - behind:,} bytes are missing"
        if size == 0 and behind:
            return (
                f"its header says that it has no sound, and {behind:,} bytes follow: whoever recorded it ended before "
                "writing the length; mend it, for example: sox --ignore-length OLD.wav NEW.wav"
            )
        return ""
    return ""


def _chunks(data: bytes, at: int) -> Iterator[tuple[bytes, int, int]]:
    """Each chunk of a WAV file from an offset on: its name, the offset of its content, and its size."""
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "big" if data[:4] == b"RIFX" else "little")
        yield data[at : at + 4], at + 8, size
        at += 8 + size + size % 2


def _soundfile() -> Any:
    with needing("input.format", "the audio format", "audio"):
        import soundfile
    return soundfile


def _soxr() -> Any:
    with needing("input.format", "the audio format", "audio"):
        import soxr
    return soxr
