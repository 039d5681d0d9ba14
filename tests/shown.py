"""What a space shows of a queue, and nobody takes."""

import spool


def bodies(space: spool.Space, queue: str = "orders") -> list[object]:
    return [message.body for message in space.browse(queue)]


def numbers(space: spool.Space, queue: str = "orders") -> list[int]:
    """Of the commits that put the messages."""
    return [message.position.number for message in space.browse(queue)]
