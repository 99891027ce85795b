"""The JSON Schemas of the commands' output with `--json`, made from the records that they print.

`python tests/tools/json_schemas.py docs/json` writes them, one file per command.
"""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import fields, is_dataclass
from inspect import cleandoc, getsource
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from nightjar.flows import reports
from nightjar.flows.cli.doctor import Finding
from nightjar.flows.reports import Night
from nightjar.flows.serving.deploy import Deployed
from nightjar.inference.history.comparison import RunsCompared
from nightjar.inference.history.retention import Pruned
from nightjar.inference.jsonform import SELDOM
from nightjar.inference.output.latest_view import PublishedFiles
from nightjar.inference.output.targets import TableShown
from nightjar.inference.output.visibility import PublicationListed
from nightjar.inference.validation.evaluations import LateEvaluation

REPORTS: dict[str, Any] = {
    "run": reports.RunResult,
    "baseline": reports.RunResult,
    "retry": reports.RunResult,
    "plan": reports.PlanReport,
    "check": reports.CheckReport,
    "status": reports.RunStatus,
    "runs": list[reports.RunListed],
    "show": reports.RunShown,
    "history": list[reports.RunListed],
    "report": reports.ReportWritten,
    "diff": RunsCompared,
    "files": PublishedFiles,
    "evaluate": LateEvaluation,
    "logs": reports.LogLine,
    "approve": reports.DecisionMade,
    "reject": reports.DecisionMade,
    "publications": list[PublicationListed],
    "rollback": PublicationListed,
    "unpublish": PublicationListed,
    "republish": PublicationListed,
    "prune": Pruned,
    "tables": list[TableShown],
    "backfill": list[Night],
    "deploy": list[Deployed],
    "doctor": list[Finding],
    "error": reports.Problem,
}
"""Command → the record that it prints with `--json` (`logs` prints one per line); `error`: that of a failed command."""


class _Printed(GenerateJsonSchema):
    """Marks every field as required that cannot be None, because a record prints all its fields but the `SELDOM`
    ones.
    """

    def dataclass_schema(self, schema: Any) -> Any:
        made = super().dataclass_schema(schema)
        # What a record inherits is said by the records that it extends.
        said = [cleandoc(each.__doc__ or "") for each in schema["cls"].__mro__ if is_dataclass(each)]
        made["description"] = "\n\n".join(said)
        for each in filter(is_dataclass, schema["cls"].__mro__):
            for name, text in _said_of_fields(each).items():
                made["properties"][name].setdefault("description", text)
        seldom = {each.name for each in fields(schema["cls"]) if SELDOM.items() <= each.metadata.items()}
        if required := [name for name in made.pop("required", ()) if name not in seldom]:
            made["required"] = required
        return made

    def field_is_required(self, field: Any, *_: Any, **__: Any) -> bool:
        return bool(field["schema"].get("default", "") is not None)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> Any:
        return self.generate_inner(schema["schema"])


def _said_of_fields(record: object) -> dict[str, str]:
    """The docstrings under a record's own fields, by their names."""
    (source,) = ast.parse(dedent(getsource(cast(type, record)))).body
    assert isinstance(source, ast.ClassDef)
    return {
        field.target.id: cleandoc(said.value.value)
        for field, said in pairwise(source.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant) and isinstance(said.value.value, str)
    }


def schema(command: str) -> str:
    """The JSON Schema of a command's output."""
    made = TypeAdapter(REPORTS[command]).json_schema(mode="serialization", schema_generator=_Printed)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **made}, indent=1) + "\n"


if __name__ == "__main__":
    for name in REPORTS:
        Path(sys.argv[1], f"{name}.json").write_text(schema(name))
