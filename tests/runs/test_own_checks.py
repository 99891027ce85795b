"""`{call: "module:name"}`: a gate of the user's own, which is given the night's figures, and scores nothing."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

from nightjar.inference import JobError
from nightjar.inference.errors import GateFailed
from nightjar.inference.run.user_code import inspect_code
from nightjar.inference.validation.gates import GateResult
from support import DOUBLE, NIGHT, Lake

CHECK = {"call": "mychecks:allowed"}


def write_checks(lake: Lake, body: str, above: str = "") -> None:
    function = f"def allowed(night):\n{textwrap.indent(body, '    ')}\n"
    (lake.folder / "mychecks.py").write_text(f"{above}\n{function}")


def ready(lake: Lake, body: str, above: str = "", **changes: Any) -> Lake:
    lake.ready(**{"checks": [CHECK], **changes})
    write_checks(lake, body, above)
    return lake


def verdict(lake: Lake, **options: Any) -> GateResult:
    return next(gate for gate in lake.run(**options).verdict.gates if gate.name == "allowed")


def refused(lake: Lake) -> GateResult:
    with pytest.raises(GateFailed) as caught:
        lake.run()
    assert not lake.snapshot().runs
    return next(gate for gate in caught.value.gates if not gate.passed)


def test_a_function_says_yes_with_its_own_words(lake: Lake) -> None:
    ready(
        lake,
        "return Judgement(True, 'nobody is flagged', '0 flagged', 'none')",
        above="from nightjar.inference import Judgement",
    )
    gate = verdict(lake)
    assert (gate.observed, gate.limit) == ("0 flagged", "none")
    assert gate.sentence == "mychecks:allowed says yes (checks[0].call): nobody is flagged"


def test_a_function_sees_tonight_and_the_last_night(lake: Lake) -> None:
    """All that it is given, on a night with a quarantine, a label's metrics, a profile and a night before."""
    lake.write_model(
        "def score(batch):\n    if 1234 in batch['x']:\n        raise ValueError('1234')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    ready(
        lake,
        """
        assert (night.job, night.date, night.run_id, night.shards) == ("lake", "2026-11-19", "2026-11-19", 8)
        assert (night.rows_in, night.rows_out, night.rows_quarantined) == (8000, 7999, 1)
        assert night.metrics.columns["score"].max == 15998.0
        assert night.metrics.columns["score"].rows == 7999
        assert night.metrics.profile["x"].rows == 7999
        assert (night.last.run_id, night.last.rows_out) == ("2026-11-18", 7999)
        assert night.last.metrics.columns["score"].max == 15998.0 and night.last.last is None
        return True
        """,
        checks=[{"column": "score", "min": 0}],
        profile=["x"],
        retry__max_quarantined=0.01,
    )
    lake.run(date="2026-11-18")
    lake.write_job(checks=[{"column": "score", "min": 0}, CHECK], profile=["x"], retry__max_quarantined=0.01)
    assert verdict(lake, date=NIGHT).sentence == "mychecks:allowed says yes (checks[1].call)."


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return False", "mychecks:allowed says no (checks[0].call)."),
        ("import numpy as np\nreturn np.bool_(False)", "mychecks:allowed says no (checks[0].call)."),
        ("return f'{night.rows_out:,} are too many'", "mychecks:allowed says no (checks[0].call): 8,000 are too many"),
        ("pass", "checks[0].call: mychecks:allowed returned None; return True, False, a sentence that says why not, "
         "or a Judgement."),
        ("return ''", "checks[0].call: mychecks:allowed returned an empty text; return True,"),
        ("return 1", "checks[0].call: mychecks:allowed returned a int; return True,"),
        ("import os\nos._exit(0)", "checks[0].call: mychecks:allowed ended its process (exit code 0), without an exc"),
        ("import sys\nsys.exit(0)", "checks[0].call: mychecks:allowed failed with SystemExit: 0 (mychecks.py:4, in "),
        ("from nightjar.inference import JobError\nraise JobError('mine')",
         "checks[0].call: mychecks:allowed failed with JobError: mine (mychecks.py:4, in allowed)."),
        ("night.rows_out = 0", "checks[0].call: mychecks:allowed failed with FrozenInstanceError: cannot assign to"),
    ],
)  # fmt: skip
def test_whatever_is_no_yes_publishes_nothing(lake: Lake, body: str, sentence: str) -> None:
    ready(lake, body)
    gate = refused(lake)
    assert gate.name == "allowed"
    assert gate.sentence.startswith(sentence.format(lake.folder)), gate.sentence


def test_an_error_is_named_with_the_file_and_line_where_it_was_raised(lake: Lake) -> None:
    """In a module that the check imports, which lies in another folder of the snapshot."""
    ready(lake, "import limits\nreturn limits.flagged(night)")
    (lake.folder / "limits.py").write_text("def flagged(night):\n\n    return night.rows_out / 0\n")
    assert refused(lake).sentence == (
        "checks[0].call: mychecks:allowed failed with ZeroDivisionError: division by zero (limits.py:3, in flagged)."
    )


def test_a_function_that_hangs_does_not_pass(lake: Lake) -> None:
    ready(lake, "import time\ntime.sleep(3600)", retry__stall_s=3)
    assert refused(lake).sentence == "checks[0].call: mychecks:allowed gave no answer within retry.stall_s = 3 s."


def test_a_check_may_only_warn_even_where_it_fails(lake: Lake) -> None:
    ready(lake, "return 1 / 0", checks=[{**CHECK, "on_fail": "warn"}])
    gate = verdict(lake)
    assert (gate.passed, gate.verdict) == (False, "warn")


def test_a_changed_check_judges_again_and_scores_nothing(lake: Lake) -> None:
    """Its code is no part of the identity: it is not there where rows are scored."""
    ready(lake, "return 'no'")
    refused(lake)
    write_checks(lake, "return True")
    ran = lake.run()
    assert (ran.scored.progress.reused_shards, ran.publication.number) == (8, 1)
    code = lake.request().scoring.code
    assert {file.name for file in code.files} == {"model.py"}


def test_what_only_a_check_imports_is_no_identity(lake: Lake) -> None:
    """And what the model imports, too, is."""
    ready(lake, "import limits\nreturn True")
    (lake.folder / "limits.py").write_text("MOST = 3\n")
    lake.run()
    (lake.folder / "limits.py").write_text("MOST = 4\n")
    ran = lake.run()
    assert (ran.scored.progress.reused_shards, ran.publication.number) == (8, 2)
    lake.write_model("import limits, mychecks\n" + DOUBLE)
    assert lake.run().scored.progress.reused_shards == 0
    write_checks(lake, "return bool(1)")
    assert lake.run().scored.progress.reused_shards == 0


def test_a_check_beside_the_model_is_identity_as_the_model_is(lake: Lake) -> None:
    lake.write_model(DOUBLE + "\ndef allowed(night):\n    return True\n")
    lake.ready(checks=[{"call": "model:allowed"}])
    assert verdict(lake).passed
    lake.write_model(DOUBLE + "\ndef allowed(night):\n    return bool(1)\n")
    assert lake.run().scored.progress.reused_shards == 0


def test_a_package_of_checks_and_an_installed_function(lake: Lake) -> None:
    lake.ready(checks=[{"call": "mine.tonight:allowed"}, {"call": "operator:truth"}])
    (lake.folder / "mine").mkdir()
    (lake.folder / "mine" / "__init__.py").write_text("")
    (lake.folder / "mine" / "words.py").write_text("YES = True\n")
    (lake.folder / "mine" / "tonight.py").write_text("from mine.words import YES\n\ndef allowed(night): return YES\n")
    assert verdict(lake).passed
    assert not [file for file in lake.request().scoring.code.files if file.name.startswith("mine/")]


@pytest.mark.parametrize(
    ("source", "call", "message"),
    [
        ("allowed = 3", "mychecks:allowed", r"checks\[0\]\.call: mychecks:allowed is a int, not a plain function"),
        ("class allowed: pass", "mychecks:allowed", r"checks\[0\]\.call: mychecks:allowed is a class, not a plain"),
        ("async def allowed(n): pass", "mychecks:allowed", r"checks\[0\]\.call: mychecks:allowed is async, not a pl"),
        ("def allowed(): pass", "mychecks:allowed", r"checks\[0\]\.call: mychecks:allowed cannot be called with"),
        ("def allowed(n): pass", "mychecks:alowed", r"checks\[0\]\.call: module 'mychecks' .* has no 'alowed'; did"),
        ("import nothing_there", "mychecks:allowed", r"checks\[0\]\.call: importing module 'mychecks' failed with Mod"),
    ],
)
def test_a_function_that_cannot_judge_is_refused_before_the_night(
    lake: Lake, source: str, call: str, message: str
) -> None:
    lake.ready(checks=[{"call": call}])
    (lake.folder / "mychecks.py").write_text(source + "\n")
    with pytest.raises(JobError, match=message):
        inspect_code(lake.request())


@pytest.mark.parametrize(
    ("source", "call", "message"),
    [
        ("def allowed(n) pass", "mychecks:allowed", r"checks\[0\]\.call: .*mychecks\.py, line 1: expected ':'"),
        ("", "mycheks:allowed", r"checks\[0\]\.call: there is no module 'mycheks' in .*did you mean 'mychecks'"),
        ("", "mychecks.allowed", r"checks\[0\]\.call: must be \"module:name\" of a function, not 'mychecks\.allowed'"),
    ],
)
def test_a_module_that_is_not_there_is_refused_when_the_job_is_read(
    lake: Lake, source: str, call: str, message: str
) -> None:
    lake.ready(checks=[{"call": call}])
    (lake.folder / "mychecks.py").write_text(source + "\n")
    with pytest.raises(JobError, match=message):
        lake.request()


def test_secrets_of_the_job_are_in_no_sentence(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "s3cr3t-of-the-service")
    ready(
        lake,
        "import os\nraise ValueError(os.environ['SERVICE_TOKEN'])",
        resources__runtime_env={"env_vars": {"SERVICE_TOKEN": "${SERVICE_TOKEN}"}},
    )
    sentence = refused(lake).sentence
    assert "failed with ValueError: " in sentence
    assert "s3cr3t" not in sentence


def test_a_job_without_code_of_its_own_has_its_checks_all_the_same(lake: Lake) -> None:
    """They are given the folder, of which nothing scores."""
    lgb = pytest.importorskip("lightgbm")
    rows = np.arange(100.0).reshape(-1, 1)
    booster = lgb.train({"verbose": -1, "min_data_in_leaf": 5}, lgb.Dataset(rows, rows[:, 0]), num_boost_round=2)
    lake.folder.mkdir(exist_ok=True)
    booster.save_model(str(lake.folder / "trees.txt"))
    ready(
        lake,
        "import json, limits\nreturn limits.MOST == json.load(open('limits.json'))",
        model={"uses": "lightgbm", "path": "trees.txt", "features": ["x"], "outputs": {"score": "float64"}},
    )
    (lake.folder / "limits.py").write_text("MOST = 3\n")
    (lake.folder / "limits.json").write_text("3")
    assert verdict(lake).passed
    assert not lake.request().scoring.code.files
    (lake.folder / "limits.json").write_text("4")
    with pytest.raises(GateFailed, match="mychecks:allowed says no"):
        lake.run(run_id="other")
