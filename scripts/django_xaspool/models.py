"""The table of the outbox."""

from django.db import models


class OutboxTask(models.Model):
    """A task that was enqueued in a database transaction, and that is not in the space yet. See ``outbox``.

    id: the id of the task's result; ids ascend in the order of the calls of ``enqueue``.
    backend: the key of the backend in the setting TASKS.
    queue: the queue of the space.
    body: the body of the message, as JSON.
    """

    id = models.CharField(primary_key=True, max_length=32)
    backend = models.CharField(max_length=127)
    queue = models.CharField(max_length=127)
    body = models.TextField()

    class Meta:
        app_label = "django_xaspool"
