"""Heuristic decisions: an administrator commits or rolls back a prepared branch without its coordinator.

A fact records the decision until the coordinator forgets it.

Source: X/Open CAE Specification "Distributed Transaction Processing: The XA Specification", heuristic completion.
"""

from spool.index.index import Index
from spool.log.visibility import catch_up
from spool.model.xid import Xid
from spool.store.store import Store

COMMITTED, ROLLED_BACK = "committed", "rolled back"
_HEURISTIC_FACT = "heuristic:"


def fact_key(xid: Xid) -> str:
    """Return the key of the fact that records an administrator's decision about a branch."""
    return f"{_HEURISTIC_FACT}{xid}"


def heuristic_fact(index: Index, xid: Xid) -> str | None:
    """Return the administrator's decision about the branch in this index, or None if the index has no decision."""
    found = index.facts.get(fact_key(xid))
    return None if found is None else str(found[1])


def heuristic_outcome(store: Store, xid: Xid) -> str | None:
    """Return the administrator's decision about the branch, or None if no decision is recorded."""
    catch_up(store)
    return heuristic_fact(store.view.index, xid)


def heuristic_outcomes(store: Store) -> dict[str, str]:
    """Return the decisions of administrators that no coordinator has forgotten. The keys are the texts of xids."""
    catch_up(store)
    with store.view.mutex:
        facts = store.view.index.facts
        found = [(key, str(value)) for key, (_, value, _) in facts.items() if key.startswith(_HEURISTIC_FACT)]
    return {key.removeprefix(_HEURISTIC_FACT): outcome for key, outcome in sorted(found)}
