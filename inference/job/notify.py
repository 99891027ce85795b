"""The section `notify` of a job file: who is told how a night ended."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from nightjar.inference.job.sections import Section, as_tuple

Occasion = Literal["failed", "asks", "published"]
"""What may be told: that a night ended without a publication, that it asks a person, or that it is published."""


def is_address(text: str) -> bool:
    """Whether a text is the address of a webhook."""
    if not re.fullmatch(r"https?://[!-~]+", text):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _secret(value: Any) -> Any:
    # The value is in no message: whoever has it may write to the channel.
    if not isinstance(value, str) or not is_address(value):
        raise ValueError(
            "must be an address as https://hooks.example.com/…; or name its variable in notify.webhook_env"
        )
    return SecretStr(value)


class Notify(Section):
    """on: when a message is sent. webhook: the address that it is posted to. webhook_env: in place of it the
    environment variable that has the address, where the run's flow is.
    """

    on: Annotated[tuple[Occasion, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    webhook: Annotated[SecretStr, BeforeValidator(_secret)] | None = None
    webhook_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if (self.webhook is None) == (self.webhook_env is None):
            raise ValueError("write one of webhook (an address) and webhook_env (the variable that has it)")
        return self

    def address(self, environment: dict[str, str]) -> str:
        """The webhook's address; '' if the environment does not have it."""
        if self.webhook is not None:
            return self.webhook.get_secret_value()
        found = environment.get(self.webhook_env or "", "").strip()
        return found if is_address(found) else ""
