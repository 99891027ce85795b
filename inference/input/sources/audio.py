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

# libsndfile takes the number of an MP3's frames from a first frame without sound that most files have; it is marked
# `Xing`, `Info` or `VBRI`. Without it libsndfile guesses the number from the first bit rate and the file's size, and
# decodes no more frames. Where bit rates differ, the guess is wrong: sound is lost, or a whole file seems cut off.
_BIT_RATES = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""The bit rates of layer 3 in kbit/s, by their index in a frame's header: of MPEG 1 (3), and of MPEG 2 and 2.5 (2)."""

_SAMPLE_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
"""Sample rates, by the version of MPEG as the header encodes it."""


def counted(data: bytes) -> bytes:
    """The file, with a `Xing` frame that counts its frames if it has none and its bit rates differ."""
    begin = _after_tags(data)
    if not (size := _frame_size(data, begin)):
        return data
    if any(mark in data[begin : begin + size] for mark in (b"Xing", b"Info", b"VBRI")):
        return data
    rates = [data[at + 2] >> 4 for at in _frames(data, begin)]
    if len({*rates}) < 2:
        return data
    return data[:begin] + _xing(data[begin : begin + 4], len(rates)) + data[begin:]


def _after_tags(data: bytes) -> int:
    """The offset of the sound, behind ID3 tags."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10:
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + 10 * (data[at + 5] >> 4 & 1)
    return at


def _frames(data: bytes, at: int) -> Iterator[int]:
    """The offset of each whole frame. Bytes between two frames are skipped, as by the decoder."""
    while at >= 0:
        if not (size := _frame_size(data, at)):
            at = data.find(b"\xff", at + 1)
            while at >= 0 and not ((size := _frame_size(data, at)) and _frame_size(data, at + size)):
                at = data.find(b"\xff", at + 1)
        elif at + size <= len(data):
            yield at
            at += size
        else:
            return


def _frame_size(data: bytes, at: int) -> int:
    """The bytes of the layer 3 frame at this offset; 0 if there is none, or its header does not tell its size."""
    header = data[at : at + 4]
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return 0
    version, bit_rate, sample_rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or bit_rate in {0, 15} or sample_rate == 3:
        return 0
    bits = _BIT_RATES[3 if version == 3 else 2][bit_rate] * 1000
    return (144 if version == 3 else 72) * bits // _SAMPLE_RATES[version][sample_rate] + (header[2] >> 1 & 1)


def _xing(header: bytes, count: int) -> bytes:
    """A frame without sound that gives the number of frames. header: of one of these."""
    mpeg1, mono = header[1] >> 3 & 3 == 3, header[3] >> 6 == 3
    side = (17 if mono else 32) if mpeg1 else (9 if mono else 17)
    # The bit rate must make the frame large enough; protection by a checksum is off.
    own = bytes([0xFF, header[1] | 1, 0x90 | header[2] & 0x0C, header[3]])
    frame = own + bytes(side) + b"Xing" + (1).to_bytes(4, "big") + count.to_bytes(4, "big")
    return frame.ljust(_frame_size(own, 0), b"\0")


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
            with soundfile.SoundFile(io.BytesIO(counted(data))) as file:
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
