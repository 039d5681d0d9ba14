"""A plugin of pytest for Django's own tests of tasks: ``XaspoolBackend`` takes the place of the dummy backend.

django-tasks has no tests in its source distribution; they are those of Django 6. On Django 5.2 the names of
``django.tasks`` lead to django-tasks.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings

_PLACE = tempfile.mkdtemp(prefix="xaspool-suite-")
_BACKEND = {"BACKEND": "django_xaspool.XaspoolBackend", "OPTIONS": {"space": f"{_PLACE}/space", "database": None}}
_DUMMY = "django.tasks.backends.dummy.DummyBackend"


def _configured(tasks: dict[str, Any]) -> dict[str, Any]:
    """Return the setting TASKS of a test, with our backend instead of the dummy."""
    found = {}
    for alias, options in tasks.items():
        name = options["BACKEND"]
        found[alias] = {**options, **_BACKEND} if name == _DUMMY else options
        if _OLD:
            found[alias]["BACKEND"] = found[alias]["BACKEND"].replace("django.tasks.", "django_tasks.")
    return found


_OLD = django.VERSION < (6, 0)
if _OLD:
    import django_tasks

    sys.modules["django.tasks"] = django_tasks
    exceptions: Any = importlib.import_module("django_tasks.exceptions")
    exceptions.InvalidTask, exceptions.InvalidTaskBackend = (
        exceptions.InvalidTaskError,
        exceptions.InvalidTaskBackendError,
    )
    django_tasks.Task = importlib.import_module("django_tasks.base").Task
    for name in ("base", "backends", "backends.base", "backends.dummy", "backends.immediate", "exceptions", "signals"):
        sys.modules[f"django.tasks.{name}"] = importlib.import_module(f"django_tasks.{name}")

settings.configure(
    SECRET_KEY="of tests", USE_TZ=True, INSTALLED_APPS=["django_tasks"] if _OLD else [],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)  # fmt: skip
django.setup()

from django.test import override_settings  # noqa: E402

_enable = override_settings.enable


def _enable_ours(self: Any) -> None:
    if "TASKS" in self.options:
        self.options = {**self.options, "TASKS": _configured(self.options["TASKS"])}
    _enable(self)


override_settings.enable = _enable_ours


def _clear(self: Any) -> None:
    import spool

    space = spool.shared(Path(self.space_with().path))
    for queue in space.queues():
        space.purge(queue)


def _results(self: Any) -> list[Any]:
    space = self.space_with()
    waiting = [message for queue in sorted(space.queues()) for message in space.browse(queue)]
    return [self.get_result(message.correlation_id) for message in waiting]


@pytest.fixture(autouse=True, scope="session")
def _as_dummy() -> None:
    """Give the backend the two names of the dummy backend that the tests use."""
    from django_xaspool import XaspoolBackend

    XaspoolBackend.clear = _clear
    XaspoolBackend.results = property(_results)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    from django_xaspool import XaspoolBackend

    for item in items:
        if hasattr(item.module, "DummyBackend"):
            item.module.DummyBackend = XaspoolBackend
