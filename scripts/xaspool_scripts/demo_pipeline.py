"""The demonstration's pipeline: an order becomes a message for each of its lines and one with the total, as a whole."""

import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spool
from forwarder import Continue, Pipeline
from xaspool_scripts.common import Failure

ORDERS = 400
_LINES = 3
_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.001

# Both destinations are stopped, so that what was translated can be looked at.
_TOML = """\
name = "shop"
retry_delay = 0.0

[[routes]]
name = "warehouse"
translate = "xaspool_scripts.demo_pipeline:to_lines"
to = "warehouse"

[[routes]]
name = "accounts"
translate = "xaspool_scripts.demo_pipeline:to_total"
to = "accounts"

[destinations.warehouse]
service = "queue:nowhere"
stopped = true

[destinations.accounts]
service = "queue:nowhere"
stopped = true
"""


def to_lines(message: Any) -> list[Continue]:
    """A translation: a message for each line of an order."""
    return [Continue(line) for line in message.body["lines"]]


def to_total(message: Any) -> Continue:
    """A translation: the total of an order."""
    return Continue({"total": sum(line["count"] for line in message.body["lines"])})


def kill_and_finish(space: spool.Space, directory: str, start: Callable[..., "subprocess.Popen[bytes]"]) -> int:
    """Translate orders, kill the program on its way, and have another one do the rest.

    Returns:
        How many orders were translated when it was killed.

    Raises:
        Failure: an order was translated in part, twice, or never.
    """
    file = Path(directory, "shop.toml")
    file.write_text(_TOML)
    Pipeline.load(file).create_queues(space)
    orders = [{"lines": [{"item": n, "count": line} for line in range(1, _LINES + 1)]} for n in range(ORDERS)]
    expected = set(space.put_many("shop", orders))
    program = start("forward", "--no-spark", "--pipeline", str(file))
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while space.stats("shop.to.accounts").enqueued < ORDERS // 3:
        if program.poll() is not None or time.monotonic() > deadline:
            raise Failure("the pipeline did not come to a third of the orders; what it said stands above")
        time.sleep(_POLL_SECONDS)
    program.kill()
    program.wait()
    translated = _whole(space)
    if start("forward", "--no-spark", "--once", "--pipeline", str(file)).wait(_TIMEOUT_SECONDS) != 0:
        raise Failure("the pipeline failed when it was started again; what it said stands above")
    if _whole(space) != expected or space.stats("shop").ready:
        raise Failure("not every order was translated; please report it")
    for queue in ("shop.to.warehouse", "shop.to.accounts"):
        space.purge(queue)
    return len(translated)


def _whole(space: spool.Space) -> set[str]:
    """Return the orders that were translated. Raises Failure if one was in part, twice, or in several commits."""
    parts = defaultdict[str, list[tuple[str, int]]](list)
    for queue in ("shop.to.warehouse", "shop.to.accounts"):
        for message in space.browse(queue):
            parts[message.correlation_id or ""].append((queue, message.position.number))
    for order, found in parts.items():
        queues = [queue for queue, _ in found]
        if sorted(queues) != ["shop.to.accounts", *["shop.to.warehouse"] * _LINES] or len({n for _, n in found}) > 1:
            raise Failure(f"order {order} was translated in part, or twice: {found}; please report it")
    return set(parts)
