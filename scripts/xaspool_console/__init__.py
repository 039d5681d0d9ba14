"""The web console of a space, which ``spool-admin console`` serves. The console needs the extra ``console``.

``server`` listens, ``access`` guards every request, ``app`` has the list of addresses. ``space_pages``,
``queue_pages``, ``quarantine_pages`` and ``changes`` answer the requests. The templates and the static files need no
build step.
"""
