"""What a script does with the functions of `nightjar.flows`, for `forked.forked_call`."""

from __future__ import annotations

from prefect import flow
from prefect.logging import get_run_logger

from nightjar.flows import baseline


@flow(name="of the script itself")
def say(text: str) -> None:
    """Log a line, which Prefect prints on the terminal."""
    get_run_logger().info(text)


def describe_training_set(job: str, inputs: str) -> None:
    """Call `baseline`, and print what it returns; then go on with a flow."""
    done = baseline(job, inputs, engine="local")
    print(done.state, done.run_id, done.rows_in, done.publication)
    say("the script goes on")
