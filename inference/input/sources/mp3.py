"""MP3 streams without a number of frames.

libsndfile takes the number from a first frame without sound that most files have: its mark is `Xing` or `Info`, of some
encoders `VBRI`. Without one it guesses the number from the first bit rate and the file's size, and decodes no more. So
where bit rates differ, sound would be lost, or a whole file be taken for one that was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator

_RATES = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""The bit rates of layer 3, in thousands a second, by their number in a frame's header: of MPEG 1, and of 2 and 2.5."""

_SAMPLED = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
"""Samples a second, by MPEG's version as the header has it."""


def counted(data: bytes) -> bytes:
    """The file with a first frame that says how many there are, if it has none and its bit rates differ."""
    begin = _behind_tags(data)
    if not (size := _size(data, begin)):
        return data
    if any(mark in data[begin : begin + size] for mark in (b"Xing", b"Info", b"VBRI")):
        return data
    rates = [data[at + 2] >> 4 for at in _frames(data, begin)]
    if len({*rates}) < 2:
        return data
    return data[:begin] + _saying(data[begin : begin + 4], len(rates)) + data[begin:]


def _behind_tags(data: bytes) -> int:
    """Where the sound begins behind tags of ID3."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10:
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + 10 * (data[at + 5] >> 4 & 1)
    return at


def _frames(data: bytes, at: int) -> Iterator[int]:
    """Where each whole frame begins. What lies between two is passed over, as by the decoder."""
    while at >= 0:
        if not (size := _size(data, at)):
            at = data.find(b"\xff", at + 1)
            while at >= 0 and not ((size := _size(data, at)) and _size(data, at + size)):
                at = data.find(b"\xff", at + 1)
        elif at + size <= len(data):
            yield at
            at += size
        else:
            return


def _size(data: bytes, at: int) -> int:
    """The bytes of the frame of layer 3 that begins here; 0 if none does, or if it does not say so."""
    header = data[at : at + 4]
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return 0
    version, rate, sampled = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or rate in {0, 15} or sampled == 3:
        return 0
    bits = _RATES[3 if version == 3 else 2][rate] * 1000
    return (144 if version == 3 else 72) * bits // _SAMPLED[version][sampled] + (header[2] >> 1 & 1)


def _saying(header: bytes, count: int) -> bytes:
    """A frame without sound that says how many follow. header: of one of these."""
    one, mono = header[1] >> 3 & 3 == 3, header[3] >> 6 == 3
    side = (17 if mono else 32) if one else (9 if mono else 17)
    # The bit rate must make the frame large enough; protection by a checksum is off.
    own = bytes([0xFF, header[1] | 1, 0x90 | header[2] & 0x0C, header[3]])
    return (own + bytes(side) + b"Xing" + (1).to_bytes(4, "big") + count.to_bytes(4, "big")).ljust(_size(own, 0), b"\0")
