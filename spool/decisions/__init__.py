"""The decision logs of transaction managers: one directory, with one file for each coordinator.

``directory`` finds coordinators, checks whether each coordinator lives, and reads the logs of dead coordinators.
``place`` binds the id of the directory to its machine. ``log`` writes the log of a coordinator of this process.
``records`` is the format of a log.

A *coordinator* is one open transaction manager. A coordinator locks its log while it lives, so a free lock proves that
the coordinator is dead. The log has two parts. The *header* names the resources that the coordinator uses, and is
durable before the first work in a resource. The *slots* are the decisions to commit. A transaction without a slot is
rolled back (presumed abort). The exception: the decision may be a row in a database that the header names.
"""

from spool.decisions.directory import LogDirectory, log_name, open_directory
from spool.decisions.log import DecisionLog
from spool.decisions.place import PLACE
from spool.decisions.records import COORDINATOR_BYTES, LogContents
from spool.disk.advice import translated

__all__ = [
    "COORDINATOR_BYTES", "PLACE", "DecisionLog", "LogContents", "LogDirectory", "log_name", "open_directory",
    "translated",
]  # fmt: skip
