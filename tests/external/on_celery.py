"""A plugin of pytest for Celery's own tests: a second name of the result backend, ``redis-score+xaspool://...``.

Many tests keep score in a Redis, and check for this that the URL of the results begins with "redis".
"""

from celery.app.backends import BACKEND_ALIASES

BACKEND_ALIASES["redis-score"] = "celery_xaspool.results:XaspoolBackend"
