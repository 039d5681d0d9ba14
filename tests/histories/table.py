"""All histories, by name."""

from tests.histories.branches import BRANCHES
from tests.histories.dropped import DROPPED
from tests.histories.losses import LOSSES
from tests.histories.messages import MESSAGES
from tests.histories.overwriting import OVERWRITING
from tests.histories.translations import TRANSLATIONS
from tests.histories.upkeep import UPKEEP

HISTORIES = (*MESSAGES, *BRANCHES, *UPKEEP, *DROPPED, *TRANSLATIONS, *LOSSES)
"""The histories for every disk; ``OVERWRITING`` has those that need file systems on which names follow."""

BY_NAME = {history.name: history for history in (*HISTORIES, *OVERWRITING)}
