"""The settings of the tests, and of the worker processes that they start, whose space is in $SPACE."""

import os

SECRET_KEY = "of tests"
USE_TZ = True
LOGGING_CONFIG = None
INSTALLED_APPS = ["django_xaspool"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}


def tasks_in(space: object, **options: object) -> dict[str, object]:
    """The setting TASKS with one backend."""
    backend = {"BACKEND": "django_xaspool.XaspoolBackend", "QUEUES": ["default", "mail"]}
    return {"default": {**backend, "OPTIONS": {"space": space, **options}}}


TASKS = tasks_in(os.environ.get("SPACE", "/nowhere"))
