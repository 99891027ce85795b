"""Signed URLs of web servers: the location of a file is kept apart from the query that opens it.

Whoever has such a query may read the file. So a plan, a part, a manifest, a message or a log has the location alone.
The query lies in the memory of the processes of a run, and `web` adds it to a request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from nightjar.inference.messages import HIDDEN

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
    return re.sub(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)", HIDDEN, text)


def signed(place: str) -> str:
    """The URL to ask for: the location with its query, if this process has one."""
    return f"{place.partition('?')[0]}?{query}" if (query := _queries.get(place)) else place


def queries() -> Mapping[str, str]:
    """All queries that this process has, for another process of the run."""
    return dict(_queries)


def remember(given: Mapping[str, str]) -> None:
    """Take over the `queries` of another process."""
    _queries.update(given)
