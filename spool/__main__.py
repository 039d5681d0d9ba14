"""``python -m spool`` is ``spool-admin``."""

from importlib import import_module

# By name: the engine knows nothing of the programs that are built on it.
import_module("xaspool_scripts.start").admin()
