"""The file that explains surviving mutants speaks of the code as it is."""

from __future__ import annotations

import mutants


def test_every_explanation_is_of_a_function_and_a_line_that_are_there() -> None:
    """Else delete it, or give it the line as it is now."""
    assert mutants.outdated(mutants.explanations()) == []


def test_an_explanation_of_what_is_gone_is_outdated() -> None:
    gone = [
        mutants.Explanation("scoring.memory.no_such_function", "why"),
        mutants.Explanation("scoring.memory.release", "why", was="no such line"),
        mutants.Explanation("input.plan.make_plan", "why", was="kept, covered = _kept(discovery"),
        mutants.Explanation("no_such_module.release", "why"),
    ]
    kept = [mutants.Explanation("scoring.memory.*", "why"), mutants.Explanation("ledger.*.fold", "why")]
    assert mutants.outdated([*gone, *kept]) == gone
