"""The scenarios, grouped by the rules that they check."""

from tests.protocol.scenarios import (
    attempts,
    combined,
    data_flush,
    numbers,
    opening,
    reclaim,
    subscriptions,
    two_phase,
    vote_data,
    waiting,
)

SCENARIOS = [
    *numbers.SCENARIOS,
    *two_phase.SCENARIOS,
    *reclaim.SCENARIOS,
    *opening.SCENARIOS,
    *data_flush.SCENARIOS,
    *vote_data.SCENARIOS,
    *subscriptions.SCENARIOS,
    *combined.SCENARIOS,
    *attempts.SCENARIOS,
    *waiting.SCENARIOS,
]
