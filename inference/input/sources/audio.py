"""Audio: each file is one row, decoded by libsndfile (WAV, FLAC, OGG, MP3). What is wrong with a file costs that row.

The columns are `samples`, float32 from -1 to 1, one list of a file's mono sound, or frames × channels with `mono:
false`; `sampling_rate`, in samples a second; and `path`, the file's location. As they lie there, files are read by the
format `binary`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.sources.binary import OneRowSource
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.job.options import flag, whole
from nightjar.inference.storage.protocol import Entry, Storage, file_name
from nightjar.inference.tensors import VariableShapedTensor, of_variable_shape

# libsndfile takes the number of an MP3's frames from a first frame without sound that most files have. Without it
# libsndfile guesses the number from the first bit rate and the file's size, and decodes no more frames: where bit rates
# differ, sound would be lost. So such a file claims to be larger.
_COUNTS = (b"Xing", b"Info", b"VBRI")
"""The marks of a frame that says how many there are."""


class _Larger(io.BytesIO):
    """A file that claims to be 40 times as large as it is, which is the ratio of the bit rates of MP3."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._more = 39 * len(data)
        self._tag = 40 * len(data) - 128

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return super().seek(offset + (self._more if whence == io.SEEK_END else 0), whence)

    def readinto(self, buffer: Any) -> int:
        if self.tell() < self._tag:
            return super().readinto(buffer)
        buffer[:] = bytes(len(buffer))  # the last bytes, which may be a tag
        return len(buffer)


def _lacks_count(data: bytes) -> bool:
    """Whether it is an MP3 that does not say how many frames it has."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10:
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + 10 * (data[at + 5] >> 4 & 1)
    return data[at : at + 1] == b"\xff" and not any(mark in data[at : at + 200] for mark in _COUNTS)


MOST_SAMPLES = 1 << 28
"""Sound of more samples, of all channels together, is not decoded: a small file may claim to have them. So many are
97 minutes of two channels at 48 kHz, and 1 GiB."""

_EXPANDED = {".wav": 2, ".flac": 4}
"""The assumed ratio of samples of float32 to a file's size."""

_HEADER = 1024
"""A WAV file of more bytes has sound."""

_LOSSY = 25
"""The same for compression that loses something."""


@dataclass(frozen=True)
class Audio(OneRowSource):
    """The source of audio. sample_rate: to which all sound is resampled. mono: whether channels are averaged."""

    sample_rate: int | None = None
    mono: bool = True

    name = "audio"
    suffixes = (".wav", ".flac", ".ogg", ".mp3")
    extra = "audio"
    options = (
        whole("sample_rate", "all sound is resampled to so many samples a second", "the file's", least=1),
        flag("mono", "one list of samples, the mean of the channels; else frames × channels", "`true`"),
    )

    def describe(self, storage: Storage, entry: Entry) -> Description:
        """Nothing is read. A file that is no sound is a row, too: reading it will say what it is."""
        for needed in ("soundfile", "soxr") if self.sample_rate is not None else ("soundfile",):
            self.imported(needed)
        _, dot, end = file_name(entry.uri).lower().rpartition(".")
        return Description(self.schema(), (1,), (max(1, entry.size * _EXPANDED.get(dot + end, _LOSSY)),))

    def decoded(self, uri: str, data: bytes) -> dict[str, pa.Array]:
        samples, rate = self._samples(uri, data)
        return {"samples": self._array(samples), "sampling_rate": pa.array([rate], pa.int32())}

    def schema(self) -> pa.Schema:
        kind = pa.list_(pa.float32()) if self.mono else VariableShapedTensor(pa.float32())
        return pa.schema([("samples", kind), ("sampling_rate", pa.int32()), ("path", pa.string())])

    def _samples(self, uri: str, data: bytes) -> tuple[npt.NDArray[np.float32], int]:
        """Samples of shape (frames,) or (frames, channels), and how many there are in a second. Raises as `decoded`."""
        if not data:
            raise InputCorrupt(f"{uri}: an empty file, not audio")
        soundfile, is_guess = self.imported("soundfile"), _lacks_count(data)
        try:
            with soundfile.SoundFile((_Larger if is_guess else io.BytesIO)(data)) as file:
                said, channels, rate = int(file.frames), int(file.channels), int(file.samplerate)
                most = int(MOST_SAMPLES / channels / max(1.0, (self.sample_rate or rate) / rate))
                samples = file.read(most + 1, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            # What it says of itself begins with the name of the file, here an object in memory.
            said = getattr(error, "error_string", error)
            raise InputCorrupt(f"{uri}: not audio that can be decoded: {said}") from error
        wrong = _wrong(data, len(samples))
        if len(samples) > most:
            wrong = f"more than {most:,} frames of {channels} channels at {rate:,} Hz, the most that are decoded"
        elif len(samples) < said and not is_guess:
            wrong = wrong or f"it was cut off: {len(samples):,} of {said:,} frames"
        if wrong:
            raise InputCorrupt(f"{uri}: {wrong}")
        if self.mono:
            samples = samples.mean(axis=1, dtype=np.float32)
        if self.sample_rate is not None and self.sample_rate != rate:
            samples, rate = self.imported("soxr").resample(samples, rate, self.sample_rate), self.sample_rate
        return np.ascontiguousarray(samples, np.float32), rate

    def _array(self, samples: npt.NDArray[np.float32]) -> pa.Array:
        if not self.mono:
            return of_variable_shape(samples)
        return pa.ListArray.from_arrays(pa.array([0, len(samples)], pa.int32()), pa.array(samples))


SOURCE = Audio()


def _wrong(data: bytes, frames: int) -> str:
    """What is wrong with a WAV file's length: libsndfile reads what is there, up to what the header says."""
    size = 8 + int.from_bytes(data[4:8], "big" if data[:4] == b"RIFX" else "little")
    if data[:4] not in {b"RIFF", b"RIFX"} or size > 0xFFFFFFFF:
        return ""  # a stream, written where one cannot seek, has no length
    if size > len(data):
        return f"the audio was cut off: {size - len(data):,} bytes are missing"
    if not frames and len(data) > _HEADER:
        return "its header says that it has no sound: whoever recorded it ended before writing the length"
    return ""
