"""Celery without a broker: a transport of kombu and a result backend of Celery on a queue space.

``Celery(broker="xaspool:///var/spool/shop", backend="xaspool:///var/spool/shop")`` uses this package. docs/celery.md
(``spool-admin docs celery``) explains the settings.
"""
