"""What every kind of check must do, tried on each that a job may name. A new one adds its example to `EXAMPLES`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from endpoints import endpoint
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import GateFailed
from nightjar.inference.job.checks import CHECKS
from nightjar.inference.validation.gates.rules import gates_of
from support import Lake

ANSWERS = {"uses": "openai", "served_model": "m", "prompt": "upper: {name}", "outputs": {"score": "string"}}
EXAMPLES: dict[str, dict[str, Any]] = {
    "column": {"column": "id", "min": 0, "max": 1, "nulls": 0, "finite": True},
    "metric": {"metric": "rmse", "max": 1},
    "drift": {"drift": "score"},
    "rows": {"rows": {"min": 0, "against": "last", "change": 0.5}},
    "files": {"files": {"min": 1}},
    "answers": {"answers": {"cut": 0}},
    "call": {"call": "model:fine"},
    "unique": {"unique": "id"},
}
"""Kind of check → a check with each limit that the kind has, on a carried column if it takes one: nothing else asks
that such a column is measured.
"""


@pytest.mark.parametrize("kind", CHECKS)
def test_each_gate_judges_a_night_with_rows_and_one_without(tmp_path: Path, kind: str) -> None:
    """Whatever the verdict is, it has what was observed and a sentence."""
    lake = Lake(tmp_path)
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 2}\n\n\ndef fine(night):\n    return True\n")
    with endpoint() as server:
        keys: dict[str, Any] = {"checks": [{"rows": {"min": 0}}, EXAMPLES[kind]]}
        if kind == "answers":
            keys |= {"model": ANSWERS | {"url": server.url}}
        if kind == "metric":
            keys |= {"label": "x", "evaluation": {"task": "regression", "prediction": "score"}}
        for where in ("x < 20", "x < -100"):
            lake.ready(input__where=where, **keys)
            gates = [rule.gate for rule in gates_of(lake.request().job)]
            try:
                found = lake.run(engine=LOCAL, fresh=True).verdict.gates
            except GateFailed as error:
                found = error.gates
            assert len(found) == len(gates) > 3
            assert all(gate.observed and gate.sentence for gate in found)
            if where == "x < 20":
                assert "not measured" not in [gate.observed for gate in found]
