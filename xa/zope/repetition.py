"""The commit of the voted branches of a zope transaction, and its repetition after a failure.

The decision stands once every party has voted. So a thread repeats a commit that failed, while the process lives.
"""

import logging
import threading
import time

import spool
from spool.engine import Engine
from spool.errors import NotASpace
from spool.model.xid import Xid
from xa.zope.gtrid_lock import GtridLock

log = logging.getLogger("spool")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 30.0


def commit_later(engine: Engine, voted: list[Xid], coordinator: GtridLock, error: BaseException) -> None:
    log.error(
        "%s: a zope transaction is decided, but the commit of its branches %s failed (%s): this process repeats the "
        "commit; if the process ends before, the branches are rolled back",
        engine.path,
        ", ".join(map(str, voted)),
        str(error) or type(error).__name__,
    )
    try:
        UnfinishedCommit(engine, voted, coordinator).start()
    except RuntimeError as refused:  # the interpreter ends, or has too many threads
        log.error("%s: no thread can repeat the commit, so the branches are rolled back: %s", engine.path, refused)


class UnfinishedCommit(threading.Thread):
    """Repeats the commit of voted branches until no branch is undecided.

    These failures can follow a vote:

    * The disk is full, or an operation fails.
    * Another process holds a lock for 30 s.
    * A flush fails. The space has then stopped, until every process has closed it.
    * The program closes the space.
    * An administrator decides the branches.
    """

    def __init__(self, engine: Engine, voted: list[Xid], coordinator: GtridLock) -> None:
        super().__init__(name="xaspool zope", daemon=True)
        self._engine = engine
        self._voted = voted
        self._coordinator = coordinator

    def run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._attempt():
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._coordinator.close()

    def _attempt(self) -> bool:
        """Return whether no branch is undecided any more."""
        try:
            if not self._engine.closed:
                self._decide(self._engine)
            else:
                with spool.open(self._engine.path) as space:
                    self._decide(space.engine)
        except NotASpace as error:
            log.error("the branches of a zope transaction are lost: %s", error)
        except Exception as error:  # (any error: the branches would be rolled back if this thread ended)
            log.warning("%s: the branches of a zope transaction wait: %s", self._engine.path, error)
            return False
        return True

    def _decide(self, engine: Engine) -> None:
        undecided = [xid for xid in self._voted if engine.is_prepared(xid)]
        if undecided:
            engine.commit_together(undecided)
        refused = [str(xid) for xid in self._voted if engine.decision(xid) == "rolled back"]
        if refused:
            log.error("%s: an administrator rolled back the branches %s", engine.path, ", ".join(refused))
        else:
            log.warning("%s: the branches of a zope transaction are committed now", engine.path)
