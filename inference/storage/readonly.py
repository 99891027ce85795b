"""Base of the storages that are only read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nightjar.inference.errors import StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Names = list[str]  # inside the classes `list` is the method


class ReadOnly:
    """Base of these storages: nothing is written there."""

    def create(self, uri: str, data: bytes) -> None:
        """Refused."""
        raise _refused(uri)

    def write(self, uri: str, data: Buffer) -> None:
        """Refused."""
        raise _refused(uri)

    def delete(self, uris: Iterable[str]) -> None:
        """Refused."""
        raise _refused(next(iter(uris)))

    def copy(self, source: str, target: str) -> None:
        """Refused."""
        raise _refused(target)

    def subfolders(self, folder: str) -> Names:
        """None: nobody asks for a model's folders."""
        return []

    def options(self, uri: str) -> dict[str, str]:
        """None."""
        return {}

    def leftovers(self, folder: str) -> dict[str, str]:
        """None."""
        return {}


def _refused(uri: str) -> StorageError:
    return StorageError(f"{uri}: models there are only read")
