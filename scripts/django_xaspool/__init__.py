"""A backend for the tasks of Django: queues in a directory, without a server and without a table.

``TASKS = {"default": {"BACKEND": "django_xaspool.XaspoolBackend", "OPTIONS": {"space": "/var/spool/shop"}}}``; see
docs/django.md (``spool-admin docs django``).
"""

from django_xaspool.backend import XaspoolBackend

__all__ = ["XaspoolBackend"]
