"""What a script does with the functions of `nightjar.flows`, for `forked.forked_call`."""

from __future__ import annotations

from nightjar.flows import baseline


def describe_training_set(job: str, inputs: str) -> None:
    """Call `baseline`, and print what it returns."""
    done = baseline(job, inputs, engine="local")
    print(done.state, done.run_id, done.rows_in, done.publication)
