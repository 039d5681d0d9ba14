"""The settings of the tests, and of the processes that they start: $SPACE, $OUTBOX if set, and $DATABASE, as JSON."""

import json
import os
import tempfile

SECRET_KEY = "of tests"
USE_TZ = True
LOGGING_CONFIG = None
INSTALLED_APPS = ["django_xaspool"]
if "DATABASE" in os.environ:
    DATABASES = {"default": json.loads(os.environ["DATABASE"])}
else:  # (threads do not share a database in memory)
    _DIRECTORY = tempfile.TemporaryDirectory(prefix="xaspool-django-")
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{_DIRECTORY.name}/db.sqlite3"}}


def tasks_in(space: object, **options: object) -> dict[str, object]:
    """The setting TASKS with one backend."""
    backend = {"BACKEND": "django_xaspool.XaspoolBackend", "QUEUES": ["default", "mail"]}
    return {"default": {**backend, "OPTIONS": {"space": space, **options}}}


TASKS = tasks_in(os.environ.get("SPACE", "/nowhere"), outbox="OUTBOX" in os.environ)
