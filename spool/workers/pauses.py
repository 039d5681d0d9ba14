"""How long a worker or route pauses, and how long it passes over one message. Decided without touching anything."""

from spool.model.position import Position

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Before the next call to an unreachable service, or while a queue has no room: twice as long each time."""

MOST_WAITING = 10_000
"""Messages that wait for room in queues that they alone name. With more, the worker or route pauses instead, because
each claim has to pass over all of them."""


def not_reached(reason: str) -> str:
    """Return why a worker or route pauses whose service cannot be reached."""
    return f"the service was not reached ({reason})"


def no_room(full: str) -> str:
    """Return why a worker or route pauses, or one message waits, while a queue is full."""
    return f"there is no room ({full})"


class Pauses:
    """The pauses of a worker or route while nothing can be handled.

    down: the reason of the last pause; "" once a message was handled again.
    """

    def __init__(self) -> None:
        self.down = ""
        self._pause = 0.0
        self._next_pause = FIRST_PAUSE_SECONDS

    def find_down(self, reason: str, retry_after: float | None = None) -> None:
        """Note that nothing can be handled now. ``retry_after``: the shortest pause in seconds, if the service named
        one."""
        self.down = reason
        self._pause = max(self._next_pause, retry_after or 0.0)
        self._next_pause = min(self._next_pause * 2, LONGEST_PAUSE_SECONDS)

    def find_up(self) -> None:
        """Note that a message was handled: the next pause is a short one again."""
        self.down, self._pause, self._next_pause = "", 0.0, FIRST_PAUSE_SECONDS

    def take_pause(self) -> float:
        """Return the seconds of the pause that begins now; 0 for none, and if the pause was taken already."""
        pause, self._pause = self._pause, 0.0
        return pause


class WaitingMessages:
    """Messages that are passed over because a queue that they alone name has no room, each for a growing time.

    Times are in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self._waits: dict[Position, tuple[float, float]] = {}  # when the wait ends, and how long it is

    @property
    def is_full(self) -> bool:
        """Whether no further message can be added."""
        return len(self._waits) >= MOST_WAITING

    def add(self, position: Position, now: float) -> None:
        """Pass over a message: at first for a second, twice as long each time."""
        _, before = self._waits.pop(position, (0.0, FIRST_PAUSE_SECONDS / 2))
        seconds = min(before * 2, LONGEST_PAUSE_SECONDS)
        self._waits[position] = (now + seconds, seconds)

    def remove(self, position: Position) -> None:
        """Forget a message that was handled."""
        self._waits.pop(position, None)

    def positions(self, now: float) -> list[Position]:
        """Return the messages to be passed over now. Messages that nobody claimed for a minute are forgotten."""
        for position, (until, _) in list(self._waits.items()):
            if until + LONGEST_PAUSE_SECONDS < now:
                del self._waits[position]
        return [position for position, (until, _) in self._waits.items() if until > now]

    def seconds(self, now: float) -> float | None:
        """Return the seconds until the first of the waits ends; None if no message waits."""
        return min((until - now for until, _ in self._waits.values() if until > now), default=None)
