"""The rules of ``docs/architecture.md`` as switches: each default is the rule, each other value a planted mistake."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rules:
    """``Rules(field=…)`` leaves one rule out, so that the checker can show what then breaks."""

    issue: tuple[str, ...] = ("byte", "rename", "issued")
    """Rule 1: the order of steps under the number lock."""
    stamp: Literal["after issued", "before issued", "before rename"] = "after issued"
    """Rule 1: when the file gets its number."""

    finish: tuple[str, ...] = ("copy", "flush", "rename", "flush")
    """Rule 3: how a file of a dead writer becomes a commit."""
    published_again: bool = True
    """Rule 3: once the byte of a number is held, check again that the number is not published."""
    empty_commit: bool = True
    """Rule 3: a number without a whole file becomes an empty commit."""

    second_look: Literal["slots", "all", "next number", "published"] = "slots"
    """Rule 4: the unpublished numbers that a claim waits for.

    ``slots``: each number whose slot does not clear the message, and all before it (the rule). ``all``: every issued
    number (the rule without a feed). The others are mistakes: the next number only, none.
    """
    look_order: Literal["prepared first", "commits first"] = "prepared first"
    """Rule 4: the second look goes in the direction in which files move."""
    counters_read: tuple[str, ...] = ()
    """Rule 4: the second look reads the version of the prepared branches, *published* and *issued* at once; or in this
    order, which must not matter."""
    prepared_under_lock: bool = True
    """Rule 4: the list of prepared branches changes under its byte, together with its version."""
    settle_addressed: bool = True
    """Rule 4: an unpublished number whose slot names the claimed message is settled, not believed."""

    decide_after: Literal["issued", "published"] = "issued"
    """Rule 5: a decision follows every issued number, not only every published one."""

    lists: Literal[2, 1] = 2
    """Rule 2: how often a process that reclaim has overtaken lists the files before it reads them."""
    read_published_only: bool = True
    """Rule 2: a process that reads all files leaves out numbers above *published*."""
    read_again: bool = True
    """Rule 2: a listed file that was removed meanwhile makes the process list again."""
    listing: Literal["at once", "ascending", "descending"] = "at once"
    """No rule: a directory is not listed in an instant, so settings with reclaim use the two orders."""

    feed: Literal["filled", "empty", "none"] = "filled"
    """Rule 14: a writer fills the slot of its number before the rename. A slot may stay empty (a commit that is too
    large for it); ``none``: there are no slots."""
    retract: bool = True
    """Rule 14: the process that finishes the number of a dead writer empties the slot first."""

    counters: Literal["one cell", "two cells", "two equal cells"] = "one cell"
    """How a counter is stored where a store of eight bytes may tear: twice. A reader of two different values takes the
    safe bound (``two cells``); a reader that repeats until both are equal waits for ever for a dead writer."""

    move_branch: Literal["published", "flushed"] = "published"
    """When an adopted branch gets its committed name. Both are right; the engine moves it after the publication."""

    held_until_moved: bool = True
    """Rule 9: a writer holds the byte of its number until the adopted branches have their committed names."""


WITHOUT_FEED = Rules(second_look="all", feed="none")
"""The rules where there is no ring of slots, and a process reads files by name."""
