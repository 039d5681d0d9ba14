"""A backend for the tasks of Django: queues in a directory, without a server and without a table.

``TASKS = {"default": {"BACKEND": "django_xaspool.XaspoolBackend", "OPTIONS": {"space": "/var/spool/shop"}}}``; see
docs/django.md (``spool-admin docs django``). ``transaction`` takes a message and writes rows in one transaction.
"""

try:
    from django_xaspool.backend import XaspoolBackend
    from django_xaspool.transactions import transaction
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"django_xaspool needs {error.name}: pip install './xaspool[django]'") from error

__all__ = ["XaspoolBackend", "transaction"]
