"""The exit codes of all programs, and the functions that choose the exit code of a run.

Each exit code has the same meaning in every program; docs/commands.md has the table.
"""

from collections.abc import Iterable

FINE, FAILED, WRONG_USAGE, NOTHING_THERE, DAMAGE_LEFT, LEFT_SOME, FAILED_FOR_GOOD = range(7)
COULD_NOT_LOOK = 8


def exit_code(
    *, damaged: object = False, failed: object = False, failed_for_good: object = False, left: object = False
) -> int:
    """Return the exit code of a run. If several outcomes are true, the first one in the order of the arguments decides.

    Outcomes that need a person come first, because no later run reports these outcomes again. ``left`` comes last,
    because the next run handles the messages that this run left.

    Args:
        damaged: a file or a message is damaged.
        failed: the run ended early, or a service was not reached.
        failed_for_good: messages or files were rejected, deleted, or moved to an error queue or to quarantine.
        left: messages or files are left for a later run.
    """
    if damaged:
        return DAMAGE_LEFT
    if failed:
        return FAILED
    if failed_for_good:
        return FAILED_FOR_GOOD
    return LEFT_SOME if left else FINE


def code_of_effects(effects: Iterable[str], *, failed: object, left: object) -> int:
    """Return the exit code of a run that handled messages. ``effects``: the effects of the run."""
    from spool.workers.effects import FAILURES_FOR_GOOD, Effect

    occurred = set(effects)
    return exit_code(
        damaged=Effect.QUARANTINED in occurred, failed=failed, failed_for_good=occurred & FAILURES_FOR_GOOD, left=left
    )
