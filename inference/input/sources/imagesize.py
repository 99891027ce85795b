"""The size of an image in pixels, from the beginning of its file: nothing is decoded, so a bomb does no harm."""

from __future__ import annotations

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""JPEG's markers of a frame, which has the size."""
_ALONE = {0x01, *range(0xD0, 0xD9)}
"""JPEG's markers without a length behind them."""


def kind_of(head: bytes) -> str | None:
    """The kind of image that a file begins as: JPEG, PNG or WEBP; None if it is none of these."""
    if head.startswith(_JPEG):
        return "JPEG"
    if head.startswith(_PNG):
        return "PNG"
    return "WEBP" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


def dimensions(head: bytes) -> tuple[int, int] | None:
    """Height and width of the image that a file begins with; None if it is no such image, or more of it is needed."""
    kind = kind_of(head)
    if kind == "JPEG":
        return _of_jpeg(head)
    if kind == "PNG":
        return (_big(head[20:24]), _big(head[16:20])) if len(head) >= 24 else None
    return _of_webp(head) if kind == "WEBP" and len(head) >= 30 else None


def _of_jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker == 0xFF:  # a byte that fills
            at += 1
        elif marker in _FRAMES:
            return _big(head[at + 5 : at + 7]), _big(head[at + 7 : at + 9])
        else:
            at += 2 if marker in _ALONE else 2 + _big(head[at + 2 : at + 4])
    return None


def _of_webp(head: bytes) -> tuple[int, int] | None:
    chunk = head[12:16]
    if chunk == b"VP8X":
        return 1 + _little(head[27:30]), 1 + _little(head[24:27])
    if chunk == b"VP8L":
        bits = _little(head[21:25])
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    return (_little(head[28:30]) & 0x3FFF, _little(head[26:28]) & 0x3FFF) if chunk == b"VP8 " else None


def _big(found: bytes) -> int:
    return int.from_bytes(found, "big")


def _little(found: bytes) -> int:
    return int.from_bytes(found, "little")
