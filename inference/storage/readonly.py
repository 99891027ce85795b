"""Base of the storages that are only read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nightjar.inference.errors import StorageError
from nightjar.inference.storage.protocol import ANYBODY

if TYPE_CHECKING:
    from typing_extensions import Buffer

Names = list[str]  # inside the classes `list` is the method


class ReadOnly:
    """Base of these storages: nothing is written there. refusal: what the error says of a file."""

    refusal = "models there are only read"

    def create(self, uri: str, data: bytes, mode: int = ANYBODY) -> None:
        """Refused."""
        raise self._refused(uri)

    def write(self, uri: str, data: Buffer) -> None:
        """Refused."""
        raise self._refused(uri)

    def delete(self, uris: Iterable[str]) -> None:
        """Refused."""
        raise self._refused(next(iter(uris), "nothing"))

    def copy(self, source: str, target: str) -> None:
        """Refused."""
        raise self._refused(target)

    def subfolders(self, folder: str) -> Names:
        """None: nobody asks for them."""
        return []

    def options(self, uri: str) -> dict[str, str]:
        """None."""
        return {}

    def leftovers(self, folder: str) -> dict[str, str]:
        """None."""
        return {}

    def _refused(self, uri: str) -> StorageError:
        return StorageError(f"{uri}: {self.refusal}")
