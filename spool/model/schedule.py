"""Schedules: the times of a cron expression at which a space puts a message. Pure.

A schedule is a fact. Each commit of a message of the schedule also replaces the fact, so the fact tells which times are
done. The libraries of cron expressions and time zones are imported only if a schedule needs them.
"""

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from spool.errors import Argument, InvalidArgument
from spool.model.checks import ValueCheck, check, one_of, text
from spool.model.codecs import decode, encode
from spool.model.settings import NAME_RULE, QUEUE_NAME
from spool.model.text import did_you_mean, plural, shown

SCHEDULE_FACT = "schedule:"
ONCE, SKIP = "once", "skip"
MISSED = one_of(ONCE, SKIP, metavar="HOW")
SCHEDULE_NAME = ValueCheck(f"the name of a schedule, which has {NAME_RULE}", QUEUE_NAME.convert, "NAME")
OF_ONE_MESSAGE = ("not_before", "expires_at", "before", "deduplication_key")
"""The options of a put that a schedule cannot have."""
MOST_BYTES = 64 << 10
"""The largest body: each process with the space open has the bodies of all schedules in memory."""
LATE_SECONDS = 60.0
"""From so late on, a time counts as missed. The clocks of two processes may also differ by so much."""
_MOST_CRON = 255  # in characters
_NAMED = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip


class Schedule(NamedTuple):
    """A schedule, as it was at one moment. Times are in seconds since the epoch.

    queue: the queue that gets the messages.
    cron: the times of the messages.
    timezone: the name of the time zone of ``cron``.
    missed: "once" puts one message for all times that were missed; "skip" puts none.
    raw: the body of each message as stored.
    codec: the codec that decodes the body; None: the body is bytes.
    options: the options of each put.
    next_due: the next time for which a message is put; None if no time is left.
    last_due: the last time for which a message was put, or None.
    decided_at: the time of the clock when ``next_due`` was computed.
    last_put: when the last message was put, or None.
    error: why the message that is due could not be put; "" otherwise.
    """

    name: str
    queue: str
    cron: str
    timezone: str
    missed: str
    raw: bytes
    codec: str | None
    options: Mapping[str, Any]
    next_due: float | None = None
    last_due: float | None = None
    decided_at: float = 0.0
    last_put: float | None = None
    error: str = ""

    @property
    def body(self) -> Any:
        """The body of each message. Raises UnknownCodec if this process does not know its codec."""
        return decode(self.raw, self.codec)

    def as_dict(self) -> dict[str, Any]:
        """Return the names and plain values of the fields, for JSON. The body is left out."""
        hidden = {"raw", "codec", "decided_at"}
        return {name: value for name, value in self._asdict().items() if name not in hidden}

    def time_after(self, moment: float) -> float | None:
        """Return the first time after a moment; None if no time is left.

        As in Debian's cron, a daily time that the clocks skip in spring is due at the end of the skipped hour, and a
        daily time that they repeat in autumn is due the first time only. An expression of six fields follows the clock.

        Raises InvalidArgument if the cron expression is wrong, or the time zone unknown.
        """
        from cronsim import CronSim

        start = datetime.fromtimestamp(moment, self.zone)
        try:
            times = CronSim(_NAMED.get(self.cron, text(self.cron, _MOST_CRON)), start)
        except Exception as error:  # (the library has assertions, too)
            fields = "minute, hour, day of the month, month and day of the week, e.g. 0 3 * * *; or @daily and the like"
            why = f"{shown(self.cron)}: {error}"
            raise InvalidArgument(Argument("cron"), f" is five fields: {fields}; not {why}") from None
        # (from the second half of a repeated hour, the library also finds times of the first half)
        return next((due for each in times if (due := each.timestamp()) > moment), None)

    @property
    def zone(self) -> tzinfo:
        """The time zone. Raises InvalidArgument if this machine does not know the time zone."""
        from zoneinfo import ZoneInfo

        try:
            return ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError, TypeError):  # (KeyError: no zone has the name)
            from zoneinfo import available_timezones

            names = available_timezones()
            meant = did_you_mean(str(self.timezone), names) if names else "; this machine knows none: install tzdata"
            raise InvalidArgument(
                Argument("timezone"),
                f" is the name of a time zone, e.g. Europe/Berlin, not {shown(self.timezone)}{meant}",
            ) from None


_KINDS = (str, str, str, str, bytes, str | None, dict, float | None, float | None, float, float | None, str)
"""The types of the fields after the name."""


def schedule_of(key: str, value: Any) -> Schedule | None:
    """Return the schedule that a fact describes: the name, and the other fields; None if it is no schedule."""
    if isinstance(value, list) and len(value) == len(_KINDS) and all(map(isinstance, value, _KINDS)):
        return Schedule(key.removeprefix(SCHEDULE_FACT), *value)
    return None


def with_body(schedule: Schedule, body: Any, content_type: str | None = None) -> Schedule:
    """Return the schedule with another body. Raises InvalidArgument if the body cannot be that of a schedule."""
    raw, codec, content_type = encode(body, content_type)
    if not 0 < len(raw) <= MOST_BYTES:
        size = f"has {plural(len(raw), 'byte')}, and {MOST_BYTES:,} is the most" if raw else "is empty"
        raise InvalidArgument(f"the body of schedule {schedule.name!r} {size}: give the text that a consumer needs")
    return schedule._replace(raw=raw, codec=codec, options={**schedule.options, "content_type": content_type})


def planned(schedule: Schedule, now: float) -> Schedule:
    """Return a schedule that is new or was changed, with its next time. InvalidArgument if a value is not allowed."""
    check("name", schedule.name, SCHEDULE_NAME)
    check("missed", schedule.missed, MISSED)
    schedule = decided(schedule._replace(next_due=None, error=""), now)
    if schedule.next_due is None:
        raise InvalidArgument(Argument("cron"), f" {shown(schedule.cron)} never comes: no day has this date")
    return schedule


def is_due(schedule: Schedule, now: float) -> bool:
    """Return whether the schedule needs a commit: a time is due, or the clock was set back."""
    return (schedule.next_due is not None and schedule.next_due <= now) or schedule.decided_at > now + LATE_SECONDS


def puts(schedule: Schedule, now: float) -> bool:
    """Return whether the commit of a schedule that is due puts a message."""
    due = schedule.next_due
    return due is not None and due <= now and (schedule.missed == ONCE or now - due <= LATE_SECONDS)


def decided(schedule: Schedule, now: float) -> Schedule:
    """Return the schedule after its commit.

    A time for which a message was put never returns, even if the clock is set back.
    """
    if puts(schedule, now):
        schedule = schedule._replace(last_due=schedule.next_due, last_put=now, error="")
    return schedule._replace(next_due=schedule.time_after(max(now, schedule.last_due or 0.0)), decided_at=now)
