"""Edits of ``space.toml``, by a call or by hand. One call edits at a time; the edit is durable when the call returns.

The counters carry the version of the settings. Every process with the space open reads the file again when the version
has changed. The housekeeping of any process notices edits by hand.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from spool.coordination.locks import CONFIG
from spool.errors import InvalidArgument, NewerFormat, NotASpace
from spool.model import settings_file, settings_text
from spool.model.settings import QueueConfig, SpaceConfig, with_queues
from spool.store.settings_reader import new_settings, read_settings_text
from spool.store.store import Store

log = logging.getLogger("spool")


class SettingsFile(NamedTuple):
    """The text of ``space.toml``, and the settings in it."""

    text: str
    config: SpaceConfig


@contextmanager
def editing(store: Store) -> Iterator[SettingsFile]:
    """Hold the lock on ``space.toml``: one process edits at a time. Yields the file as read under the lock.

    For the errors, see ``SettingsReader.current``.
    """
    with store.shared.control.holding(CONFIG, store.deadline(), "the lock on space.toml"):
        text = read_settings_text(store.files.disk)
        yield SettingsFile(text, store.settings.parse(text))


@contextmanager
def edited(
    store: Store, file: SettingsFile, changed: Mapping[str, QueueConfig], removed: Collection[str] = ()
) -> Iterator[Callable[[], SpaceConfig]]:
    """Write settings with some queues added, changed or removed. The settings are durable and in use once the body
    calls the yielded function, which returns the settings.

    The work that grows with the size of the file is done before the body, which may hold the number lock.
    """
    text, config = _text_and_settings(store, file, changed, removed)

    def publish() -> SpaceConfig:
        replace_file()
        store.files.copies.keep_settings(text)
        store.shared.counters.bump_settings()
        store.settings.current()
        return config

    with new_settings(store.files.disk, text) as replace_file:
        yield publish


def _text_and_settings(
    store: Store, file: SettingsFile, changed: Mapping[str, QueueConfig], removed: Collection[str]
) -> tuple[str, SpaceConfig]:
    if (text := settings_text.edited(file.text, file.config, changed, removed)) is not None:
        with suppress(InvalidArgument, NewerFormat):
            config = store.settings.parse(text)
            if config == with_queues(file.config, changed, removed):
                return text, config
    text = settings_file.edited(file.text, file.config, changed, removed)
    return text, store.settings.parse(text)


def use_edits(store: Store, file: SettingsFile) -> None:
    """Put the settings into use after an edit of the file by hand."""
    if file.config is not store.settings.current().config:
        store.shared.counters.bump_settings()


def notice_edits(store: Store) -> None:
    """Raise the version if the file was edited by hand and is valid; otherwise keep the current settings."""
    if not store.settings.is_replaced():
        return
    try:
        with editing(store) as (text, config):
            known = store.settings.known
            if config != known.config and store.shared.counters.read().settings == known.version:
                store.files.copies.keep_settings(text)
                store.shared.counters.bump_settings()
    except (InvalidArgument, NewerFormat, NotASpace) as error:
        log.error("the changed settings are not used: %s", error)
        return
    store.settings.current()
