"""Masks secrets in text: values that this process knows to be secret.

The name of a variable or setting tells whether its value is secret. The value is found as it is, encoded for a URL, and
in base64. A password in a URL is found by its position.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

from nightjar.inference.messages import HIDDEN, SHORTEST
from nightjar.inference.storage.protocol import Storage
from nightjar.inference.storage.signatures import without_password

_SECRET = re.compile(r"SECRET|TOKEN|PASSW|PWD|CREDENTIAL|PRIVATE|AUTH|API_?KEY|ACCESS_KEY|SIGNATURE|_KEY$", re.I)
_NO_SECRET = re.compile(r"(_FILE|_PATH|_DIR|_SOCK|_MODE|_ID|_URL|_URI|^PWD|^OLDPWD)$", re.I)
"""Names of variables whose values tell where a secret is, or of which kind, but are not secret."""


class Masks:
    """The secrets of a process, to mask in its text."""

    def __init__(
        self, storage: Storage, environment: Mapping[str, str] = os.environ, secrets: Iterable[str] = ()
    ) -> None:
        """secrets: other values."""
        known = (*_secrets(storage, environment), *(each for each in secrets if len(each) >= SHORTEST))
        found = {form for value in known for form in _forms(value)}
        # The longest first, because one secret may contain another.
        ordered = sorted(found, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def __call__(self, text: str) -> str:
        """The text with its secrets masked."""
        if self._values is not None:
            text = self._values.sub(HIDDEN, text)
        return without_password(text) if "://" in text else text


def _secrets(storage: Storage, environment: Mapping[str, str]) -> Iterator[str]:
    settings = getattr(storage, "settings", None)
    values = [getattr(settings, name, None) for name in ("secret_key", "session_token")]
    values += [value for name, value in environment.items() if _SECRET.search(name) and not _NO_SECRET.search(name)]
    for value in filter(None, values):
        # A key in PEM form is printed line by line; a password may have a name before it.
        lines = [*value.splitlines(), value.partition(":")[2]]
        yield from (line.strip() for line in lines if len(line.strip()) >= SHORTEST)


def _forms(value: str) -> Iterator[str]:
    yield value
    yield quote(value, safe="")
    plain = value.encode(errors="surrogateescape")
    for shift in range(3):  # the secret may begin anywhere in the encoded text
        encoded = base64.b64encode(b"\0" * shift + plain).decode()
        inner = encoded[4 * (shift > 0) : -4]
        if len(inner) >= SHORTEST:
            yield inner
