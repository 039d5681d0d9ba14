"""The settings that concern tasks, and a database."""

from pathlib import Path

BASE = Path(__file__).parents[1]

SECRET_KEY = "of an example"
USE_TZ = True
INSTALLED_APPS = ["django_xaspool"]  # for the outbox, and for manage.py spool_worker
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE / "db.sqlite3"}}
TASKS = {
    "default": {
        "BACKEND": "django_xaspool.XaspoolBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"space": BASE / "inn", "outbox": True},
    }
}
