"""Celery without a broker: a transport of kombu and a result backend of Celery on a queue space.

``Celery(broker="xaspool:///var/spool/shop", backend="xaspool:///var/spool/shop")`` uses this package. docs/celery.md
(``spool-admin docs celery``) explains the settings.
"""

import sys

try:
    import kombu  # noqa: F401 (Celery's, which may be in the middle of its own import)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"celery_xaspool needs {error.name}: pip install './xaspool[celery]'") from error

_OLDEST = (5, 7)


def refuse_old_celery() -> None:
    """Raise ImproperlyConfigured in a program with a Celery that this package does not know, e.g. its chords."""
    celery = sys.modules.get("celery")
    if celery is not None and tuple(map(int, celery.__version__.split(".")[:2])) < _OLDEST:
        from celery.exceptions import ImproperlyConfigured

        raise ImproperlyConfigured(
            f"xaspool needs Celery {'.'.join(map(str, _OLDEST))} or newer, not {celery.__version__}: run "
            "pip install --upgrade 'celery>=5.7'"
        )
