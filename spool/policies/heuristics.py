"""Heuristic decisions: an administrator commits or rolls back a prepared branch without its coordinator.

A fact records the decision until the coordinator forgets it.

Source: X/Open CAE Specification "Distributed Transaction Processing: The XA Specification", heuristic completion.
"""

from spool.log.adoption import HEURISTIC_FACT, heuristic_fact
from spool.log.visibility import catch_up
from spool.model.xid import Xid
from spool.store.store import Store

COMMITTED, ROLLED_BACK = "committed", "rolled back"


def heuristic_outcome(store: Store, xid: Xid) -> str | None:
    """Return the administrator's decision about the branch, or None if no decision is recorded."""
    catch_up(store)
    return heuristic_fact(store.view.index, xid)


def heuristic_outcomes(store: Store) -> dict[str, str]:
    """Return the decisions of administrators that no coordinator has forgotten. The keys are the texts of xids."""
    catch_up(store)
    with store.view.mutex:
        facts = store.view.index.facts
        found = [(key, str(value)) for key, (_, value, _) in facts.items() if key.startswith(HEURISTIC_FACT)]
    return {key.removeprefix(HEURISTIC_FACT): outcome for key, outcome in sorted(found)}
