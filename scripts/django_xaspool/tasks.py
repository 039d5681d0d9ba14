"""The names of ``django.tasks``: from Django 6 on they are Django's, before they are the package django-tasks'."""

try:
    from django.tasks import base, exceptions, signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.utils.json import normalize_json
except ImportError:
    import django_tasks.checks  # noqa: F401 (its import registers the checks of manage.py check)
    from django_tasks import base, exceptions, signals, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.utils import normalize_json

__all__ = ["BaseTaskBackend", "base", "exceptions", "normalize_json", "signals", "task_backends"]
