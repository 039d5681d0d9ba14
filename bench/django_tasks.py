"""The Django task that ``bench.before`` runs. Settings must be configured before this module is imported."""

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task  # type: ignore[untyped-decorator]
def nothing() -> None:
    """A task that costs nothing."""
