"""The module of the program ``dramatiq``: the actors of a space, whose path is in $SPACE."""

import os
from pathlib import Path

from tests.dramatiq_broker.app import App

app = App(Path(os.environ["SPACE"]))
broker = app.broker
