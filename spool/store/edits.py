"""Edits of ``space.toml``, by a call or by hand. One call edits at a time; the edit is durable when the call returns.

The counters carry the version of the settings. Every process with the space open reads the file again when the version
has changed. The housekeeping of any process notices edits by hand.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from spool.coordination.locks import CONFIG
from spool.errors import InvalidArgument, NewerFormat, NotASpace
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.settings_file import parse
from spool.store.settings import read_settings_text, write_settings
from spool.store.store import Store

log = logging.getLogger("spool")


def editing(store: Store) -> AbstractContextManager[None]:
    """Hold the lock on ``space.toml``: one process edits at a time."""
    return store.shared.control.holding(CONFIG, store.deadline(), "the lock on space.toml")


def edit_settings(store: Store, edit: Callable[[str, SpaceConfig], str]) -> SpaceConfig:
    """Change the text of ``space.toml``; the new text is durable when this returns.

    The text must be valid before and after the change. The caller holds ``editing``.

    Args:
        edit: a function that returns the new text, given the old text and the settings in the old text.
    """
    path = store.files.disk.path(layout.SETTINGS)
    text = read_settings_text(store.files.disk)
    changed = edit(text, parse(text, path))
    config = parse(changed, path)
    write_settings(store.files.disk, changed)
    if store.files.mirror is not None:
        store.files.mirror.keep_settings(changed)
    store.shared.counters.bump_settings()
    store.settings.current()
    return config


def notice_edits(store: Store) -> None:
    """Raise the version if the file was edited by hand and is valid; otherwise keep the current settings."""
    if not store.settings.is_replaced():
        return
    with editing(store):
        known = store.settings.known
        try:
            text = read_settings_text(store.files.disk)
            changed = parse(text, store.files.disk.path(layout.SETTINGS)) != known.config
        except (InvalidArgument, NewerFormat, NotASpace) as error:
            log.error("the changed settings are not used: %s", error)
            return
        if changed and store.shared.counters.read().settings == known.version:
            if store.files.mirror is not None:
                store.files.mirror.keep_settings(text)
            store.shared.counters.bump_settings()
    store.settings.current()
