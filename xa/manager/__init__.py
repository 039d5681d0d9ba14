"""A transaction manager: one transaction over queue spaces and databases.

* ``manager``: the entrance. ``global_transaction``: enlists resources, and commits all branches or none.
* ``space_branch``, ``two_phase_branch``, ``last_resource``: the part of a transaction in a space, in a database with
  two-phase commit, and in the one database whose own commit decides. ``decision_table``: the table of the decisions.
* ``outcomes``, ``unfinished_branches``: the transactions of this manager that have not ended. ``recovery``: the
  transactions of dead programs.
* ``database_connections``: the connections of database drivers. ``resources``: the names of resources in the log.

The log of decisions is ``spool.decisions``.
"""

from xa.manager.global_transaction import GlobalTransaction
from xa.manager.manager import TransactionManager
from xa.manager.recovery import Recovery

__all__ = ["GlobalTransaction", "Recovery", "TransactionManager"]
