"""The limits of one client: how many things it may have in progress, and which headers only once."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spool.client.problems import TooMany
from spool.errors import InvalidArgument

SMALL_BODY = 512 << 10
"""The most bytes of the body of most calls. (The receipts of all leases of a client fit.)"""
MOST_LOOKS, MOST_WAITS = (64, 8), (1_024, 256)
"""The most looks, and the most different waits, of which each has a descriptor: on the server, and of one token."""
_LOOKERS = 2
_ONCE = ("idempotency-key", "content-type")


def check_room(tokens: Collection[str], token: str, most: int, most_of_a_token: int, things: str) -> None:
    """Raise TooMany if the server or the client's token already has the largest allowed number of things.

    ``tokens``: the tokens of the present things.
    """
    if token and sum(each == token for each in tokens) >= most_of_a_token:
        raise TooMany(f"the token has {most_of_a_token:,} {things} in progress: end one, then try again")
    if len(tokens) >= most:
        raise TooMany(f"the server has {most:,} {things} in progress: end one, then try again")


def check_once(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers. InvalidArgument if one of a message comes twice."""
    counts = Counter(name for name, _ in headers if name.startswith("spool-") or name in _ONCE)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidArgument(f"a request has one header {twice[0]}")
    return headers


class Looks:
    """The looks in progress, and the few threads that look. A look at a long queue takes long, and must not hold up the
    threads that claim. ``tokens``: the tokens of the looks."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self._threads = ThreadPoolExecutor(_LOOKERS, "xaspool look")

    async def look(self, token: str, work: Callable[[], Any]) -> Any:
        """Do the work of a look in a thread. TooMany if too many looks are in progress."""
        check_room(self.tokens, token, *MOST_LOOKS, "looks")
        self.tokens.append(token)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self.tokens.remove(token)
