"""What can go wrong in a night, by name. Each does its damage, says in how many seconds whoever is on call will have
seen to it, and, asked to go on, does what that person would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from world import World


class Wound(NamedTuple):
    """What was done, and after how long it is mended."""

    what: str
    mended_s: float


Action = Callable[[World, Random], Iterator[Wound]]


class NotNow(Exception):
    """What would be taken away is away already."""


def actor_killed(world: World, dice: Random) -> Iterator[Wound]:
    """SIGKILL to one process that scores. Ray starts another."""
    actors = [(node, process) for node in world.nodes for process in node.actors()]
    if not actors:
        raise NotNow
    node, actor = dice.choice(actors)
    actor.kill()
    yield Wound(f"process {actor.pid} on {node.name}", 0.0)


def node_killed(world: World, dice: Random) -> Iterator[Wound]:
    """SIGKILL to a raylet and all below it; later the same `ray start`."""
    here = [node for node in world.nodes if node.up and node.name not in world.down]
    if not here or world.head.name in world.down:
        raise NotNow
    node = dice.choice(here)
    world.down.add(node.name)
    node.kill()
    yield Wound(node.name, dice.uniform(0, 6))
    world.down.discard(node.name)
    if world.head.name not in world.down:
        node.start()


def driver_killed(world: World, dice: Random) -> Iterator[Wound]:
    """SIGKILL to the command and all below it; the same command again, at once or after a pause."""
    if world.command is None or world.command.look() is not None:
        raise NotNow
    pid = world.command.process.pid
    world.kill_command()
    yield Wound(f"process {pid}", dice.choice([0.0, dice.uniform(1, 8)]))
    world.repeat()


def storage_killed(world: World, dice: Random) -> Iterator[Wound]:
    """SIGKILL to the S3 server; started again on the same data."""
    if "storage" in world.down:
        raise NotNow
    world.down.add("storage")
    world.store.kill()
    yield Wound("", dice.uniform(0, 8))
    world.store.start()
    world.down.discard("storage")


def storage_paused(world: World, dice: Random) -> Iterator[Wound]:
    """The S3 server accepts connections and answers nothing for a while, then goes on with what it was asked."""
    if "storage" in world.down:
        raise NotNow
    world.down.add("storage")
    world.store.pause()
    yield Wound("", dice.uniform(0.5, 12))
    world.store.resume()
    world.down.discard("storage")


def head_killed(world: World, dice: Random) -> Iterator[Wound]:
    """SIGKILL to the head, with its record of what runs where; the whole cluster is started again."""
    if world.head.name in world.down:
        raise NotNow
    world.down.add(world.head.name)
    world.head.kill()
    yield Wound("", dice.uniform(0, 15))
    world.start_cluster()
    world.down.discard(world.head.name)


DECK: dict[Action, int] = {
    actor_killed: 3,
    node_killed: 2,
    driver_killed: 2,
    storage_killed: 2,
    storage_paused: 2,
    head_killed: 1,
}
"""How often each is in the deck of cards that is shuffled and dealt."""
