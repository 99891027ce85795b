"""Locations of data: which of them data may name, the signed URLs of web servers, and the paths of model registries.

Whoever writes a list, a table's log or a link must not choose what is published. And whoever has the query of a signed
URL may read the file: a plan, a part, a manifest, a message or a log has the location alone. The query lies in the
memory of the processes of a run, and `web` adds it to a request.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from nightjar.inference.errors import JobError, StorageError
from nightjar.inference.messages import HIDDEN
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


def as_url(uri: str, where: str = "") -> str:
    """A location for a library that takes it for a URL, as delta-rs, also of a path, and Lance.

    Raises:
        JobError: The library would look at another place. where: what the message begins with.
    """
    if found := re.search(r"\\|%[0-9a-fA-F]{2}" if is_local(uri) else r"[\\#?]|%[0-9a-fA-F]{2}", uri):
        raise JobError(
            f"{where}{uri}: with {found[0]!r} in it the table's library would look at another place; choose a place "
            "without it"
        )
    return uri


# ---- signed URLs --------------------------------------------------------------------------------------------

_SIGNING = {
    "x-amz-signature": r"x-amz-.*",
    "x-goog-signature": r"x-goog-.*",
    "signature": r"signature|expires|policy|key-pair-id|awsaccesskeyid|googleaccessid|x-amz-security-token",
    "sig": r"sig|s[eprstv]|ss|srt|spr|sip|sdd|sk(oid|tid|[test]|v)",
}
"""The parameter that holds a signature → the parameters that belong to it: S3, Google, both of old with CloudFront, and
Azure. They say who may read and how long, not what is read."""

_DIGEST = re.compile(r"sha256=[0-9a-f]{16}")

_queries: dict[str, str] = {}
"""Location → query, of this process."""


def location(uri: str) -> str:
    """The location of a file, which may be shown and stored; the query of a web server's URL is remembered here.

    A file that is signed again is the same. Other parameters, which may be secret, leave a digest.
    """
    place, _, query = uri.partition("?")
    if "://" not in place or not query or _DIGEST.fullmatch(query):
        return uri
    given = parse_qsl(query, keep_blank_values=True)
    names = {name.lower() for name, _ in given}
    signing = "|".join(rest for name, rest in _SIGNING.items() if name in names)
    if not signing and not place.startswith("http"):
        return uri  # a pattern
    others = [pair for pair in given if not re.fullmatch(signing, pair[0], re.IGNORECASE)]
    if others:
        place = f"{place}?sha256={hashlib.sha256(repr(others).encode()).hexdigest()[:16]}"
    _queries[place] = query
    return place


def without_password(text: str) -> str:
    """The text with each user:password@ of a URL masked: libraries name the URLs that the environment gives them."""
    return re.sub(r"(?<=://)[^\s/@:]*:[^\s/]+(?=@)", HIDDEN, text)


def signed(place: str) -> str:
    """The URL to ask for: the location with its query, if this process has one."""
    return f"{place.partition('?')[0]}?{query}" if (query := _queries.get(place)) else place


def queries() -> Mapping[str, str]:
    """All queries that this process has, for another process of the run."""
    return dict(_queries)


def remember(given: Mapping[str, str]) -> None:
    """Take over the `queries` of another process."""
    _queries.update(given)


# ---- registries of models -----------------------------------------------------------------------------------

# A file may have any name; without a revision before it an `@` in it is most often one at the wrong place.
HUB = re.compile(
    r"hf://(?P<id>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^/\s]+))?(?P<rest>(?(revision)/.*|/[^@]*))?", re.DOTALL
)
MODELS = re.compile(r"models:/(?P<id>[^/@]+)(?:/(?P<version>\d+)|@(?P<alias>[^/\s]+))(?P<rest>/.*)?", re.DOTALL)
_RUNS = re.compile(r"runs:/(?P<id>[0-9a-f]+)(?P<rest>/.+)", re.DOTALL)
COMMIT = re.compile(r"[0-9a-f]{40}")

FORMS = "hf://org/name@revision, models:/name/7, models:/name@alias or runs:/id/path"


def is_registered(path: str) -> bool:
    """Whether a path names a model in a registry."""
    return path.startswith(("hf://", "models:/", "runs:/"))


def check_registered(path: str, where: str) -> None:
    """Check the form of a path in a registry. where: the file and key that name it.

    Raises:
        JobError: It names no model.
    """
    if not any(form.fullmatch(path) for form in (HUB, MODELS, _RUNS)):
        raise JobError(f"{where}: {path!r} names no model; write {FORMS}, and a path in it if it holds several")


def root_of(uri: str) -> str:
    """The part of a pinned path that names the model: what one connection serves."""
    found = HUB.fullmatch(uri) or MODELS.fullmatch(uri) or _RUNS.fullmatch(uri)
    if found is None:
        raise StorageError(f"{uri!r} names no model; write {FORMS}")
    return uri.removesuffix(found["rest"] or "")
