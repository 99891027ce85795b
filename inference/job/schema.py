"""The JSON Schema of the job file, so that an editor completes keys and marks faults while a job is written.

`python -m nightjar.inference.job.schema` prints it. It knows keys, types and limits. What depends on several keys, on
the calendar or on the lake, only `nightjar check` finds.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import FRAMEWORKS, SOURCES, TARGETS

_OWN = r"^[\w.]+:\w+$"
"""As in "module:Name"."""


class _Keys(GenerateJsonSchema):
    """Without a title for each key, which would repeat the key."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def job_schema() -> dict[str, Any]:
    """The schema as JSON values."""
    found = Job.model_json_schema(schema_generator=_Keys)
    for name, field in Job.model_fields.items():
        if field.exclude:  # not a key of the file
            del found["properties"][name]
    parts = found["$defs"]
    parts["Input"]["properties"]["format"] = _choice(SOURCES)
    parts["Model"]["properties"]["uses"] = {"anyOf": [_choice(FRAMEWORKS), {"type": "string", "pattern": _OWN}]}
    # These are written in a short form, which the model takes apart.
    parts["TableTarget"] |= {"properties": {kind: {"type": "string"} for kind in TARGETS}, "maxProperties": 1}
    parts["TableTarget"]["required"], parts["TableTarget"]["minProperties"] = [], 1
    parts["IdentityRules"] = {"anyOf": [{"const": "strict"}, parts["IdentityRules"]]}
    # A default in Python's own form says nothing to somebody who writes YAML.
    for key in ("resources", "retry", "rescore", "identity"):
        found["properties"][key].pop("default")
    return {"$schema": GenerateJsonSchema.schema_dialect, **found}


def _choice(names: dict[str, Any]) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def text() -> str:
    """The schema as a file's content."""
    return json.dumps(job_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
