"""The JSON Schema of the job file, so that an editor completes keys and marks faults while a job is written.

`python tests/tools/jobschema.py` prints it. It knows keys, types and limits. What depends on several keys, on
the calendar or on the lake, only `nightjar check` finds.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from nightjar.inference.job.model import Job
from nightjar.inference.job.options import schema_of
from nightjar.inference.job.seams import FRAMEWORKS, SOURCES, TARGETS, Framework
from nightjar.inference.job.sections import SPEC

_OWN = f"^{SPEC}$"
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
    parts["Input"]["properties"]["format"] = {"anyOf": [_choice(SOURCES), {"type": "string", "pattern": _OWN}]}
    parts["Input"]["properties"]["uri"].pop("default")
    del parts["Input"]["properties"]["lines"]
    parts["Input"]["anyOf"] = [{"required": ["uri"]}, {"required": ["list"]}]
    parts["Input"]["not"] = _both("uri", list="string")
    parts["Input"]["allOf"] = [_input_options(name, module) for name, module in SOURCES.items()]
    for part in ("Model", "NamedModel"):
        parts[part]["properties"]["uses"] = {"anyOf": [_choice(FRAMEWORKS), {"type": "string", "pattern": _OWN}]}
        parts[part]["allOf"] = [
            _own_keys(uses, framework) if framework.own_keys else _options(uses, framework)
            for uses, framework in FRAMEWORKS.items()
        ]
        parts[part]["allOf"].append(
            {
                "if": {"properties": {"uses": {"enum": [uses for uses, each in FRAMEWORKS.items() if each.own_keys]}}},
                "else": {"properties": dict.fromkeys(sorted(_all_own_keys()), False)},
            }
        )
        # What a key may be depends on `uses`; that it is known at all does not.
        parts[part]["properties"] |= dict.fromkeys(sorted(_all_own_keys()), True)
    found["properties"]["model"] = found["properties"]["model"]["anyOf"][0]
    found["properties"]["models"] |= {"minItems": 1}
    found["oneOf"] = [{"required": ["model"]}, {"required": ["models"]}]
    # These are written in a short form, which the model takes apart.
    parts["TableTarget"] |= {"properties": {kind: {"type": "string"} for kind in TARGETS}, "maxProperties": 1}
    parts["TableTarget"]["required"], parts["TableTarget"]["minProperties"] = [], 1
    parts["Preprocess"] = {"anyOf": [{"type": "string", "pattern": _OWN}, parts["Preprocess"]]}
    parts["IdentityRules"] = {"anyOf": [{"const": "strict"}, parts["IdentityRules"]]}
    parts["Profiling"] = {"anyOf": [*parts["Profiling"]["properties"]["columns"]["anyOf"], parts["Profiling"]]}
    # A default in Python's own form says nothing to somebody who writes YAML.
    for key in ("resources", "retry", "rescore", "identity", "profile"):
        found["properties"][key].pop("default")
    return {"$schema": GenerateJsonSchema.schema_dialect, **found}


def _both(name: str, **other: str) -> dict[str, Any]:
    """What a section with both of these keys is. other: its type, where it has a value."""
    return {"required": [name, *other], "properties": {key: {"type": kind} for key, kind in other.items()}}


def _choice(names: dict[str, Any]) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def _options(uses: str, framework: Framework) -> dict[str, Any]:
    """What `options` may hold with an adapter, which declares them."""
    options = schema_of(framework.adapter().options)
    then: dict[str, Any] = {"properties": {"options": options}}
    if "required" in options:
        then["required"] = ["options"]
    return {"if": {"properties": {"uses": {"const": uses}}, "required": ["uses"]}, "then": then}


def _own_keys(uses: str, framework: Framework) -> dict[str, Any]:
    """What `model` itself may hold with an adapter that has its options there."""
    own = schema_of(framework.adapter().options)
    others = {*_all_own_keys(), "options", *(() if framework.model else ("path",))} - set(own["properties"])
    required = {"required": own["required"]} if "required" in own else {}
    return {
        "if": {"properties": {"uses": {"const": uses}}, "required": ["uses"]},
        "then": {"properties": own["properties"] | dict.fromkeys(sorted(others), False), **required},
    }


def _all_own_keys() -> set[str]:
    """The names of all such options."""
    own = [framework.adapter() for framework in FRAMEWORKS.values() if framework.own_keys]
    return {option.name for adapter in own for option in adapter.options}


def _input_options(name: str, module: str) -> dict[str, Any]:
    """What `options` may hold with a format, which declares them."""
    options = schema_of(import_module(module).SOURCE.options)
    return {
        "if": {"properties": {"format": {"const": name}}, "required": ["format"]},
        "then": {"properties": {"options": options}},
    }


def text() -> str:
    """The schema as a file's content."""
    return json.dumps(job_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
