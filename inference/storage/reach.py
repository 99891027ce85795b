"""Which locations data may name: whoever writes a list, a table's log or a link must not choose what is published."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from urllib.parse import unquote, urlsplit

from nightjar.inference.storage.protocol import is_local, is_web

_PORTS = {"http": 80, "https": 443}


def host_of(uri: str) -> str:
    """The place of everything on the web server of this URI; of any other location the location itself."""
    return "/".join(uri.split("/")[:3]) if is_web(uri) else uri


class Reach:
    """Locations at or below some places. Links on the local disk are followed first, those of the places too."""

    def __init__(self, places: Iterable[str]) -> None:
        self._places = [_parts(place, os.path.realpath) for place in places]
        self._real: tuple[str, str] = ("", "")

    def has(self, uri: str) -> bool:
        """Whether a location lies there; never with a part `..`, however it is encoded."""
        try:
            origin, parts = _parts(uri, self.real)
        except ValueError:  # of a URL whose port or address is none
            return False
        if not is_local(uri) and not {"..", "."}.isdisjoint(parts):
            return False
        return any(origin == its and parts[: len(above)] == above for its, above in self._places)

    def real(self, path: str) -> str:
        """A local path without links. Listings are sorted, so that one folder is remembered."""
        folder, name = os.path.split(path)
        if self._real[0] != folder:
            self._real = (folder, os.path.realpath(folder))
        found = os.path.join(self._real[1], name)  # noqa: PTH118 (text, for each file)
        return os.path.realpath(found) if os.path.islink(found) else found  # noqa: PTH114 (the same)


def _parts(uri: str, real: Callable[[str], str]) -> tuple[str, list[str]]:
    """The root of a location, and the parts of its path."""
    if is_local(uri):
        return "", [each for each in real(uri).split("/") if each]
    split = urlsplit(uri)
    path = unquote(split.path).replace("\\", "/") if is_web(uri) else uri.partition("://")[2].partition("/")[2]
    port = split.port or _PORTS.get(split.scheme) if is_web(uri) else None
    root = f"{split.scheme}://{split.hostname}:{port}" if is_web(uri) else "/".join(uri.split("/")[:3])
    return root, [each for each in path.split("/") if each]
