"""``python -m spool`` is ``spool-admin``."""

from importlib import import_module

# By name, because the engine must not import the programs that are built on it.
import_module("xaspool_scripts.start").admin()
