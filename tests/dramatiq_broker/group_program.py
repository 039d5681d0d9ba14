"""The module of the program ``dramatiq``, as ``program``, with the callbacks of groups."""

import os
from pathlib import Path

from tests.dramatiq_broker.test_limits import GroupApp

app = GroupApp(Path(os.environ["SPACE"]), retries=1000)
broker = app.broker
