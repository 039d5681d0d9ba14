"""The request of a logged task: the worker notes which process has accepted the task."""

import os
from typing import Any

from celery.worker.request import Request

from tests.celery.tasks import LOG, write_line


class LoggedRequest(Request):  # type: ignore[misc]
    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        write_line(os.environ[LOG], "accepted", self.id, pid)
        return super().on_accepted(pid, time_accepted)
