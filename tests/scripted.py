"""What a script does with the functions of `nightjar.flows`, for `forked.forked_call`."""

from __future__ import annotations

import sys

from nightjar.flows import baseline


def describe_training_set() -> None:
    """The job, its training set and its date are the arguments. Prints what the function returns."""
    job, inputs, date = sys.argv[1:]
    done = baseline(job, inputs, date=date, engine="local")
    print(done.state, done.run_id, done.rows_in, done.publication)
