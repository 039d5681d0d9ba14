"""``run_tasks``, for tests of an application."""

import spool
from django_xaspool.tasks import base, task_backends


def run_tasks(alias: str = base.DEFAULT_TASK_BACKEND_ALIAS) -> int:
    """Run the tasks that can run now, and the tasks that these enqueue, in this thread; return how many ended.

    The tasks use the database connection of the caller, so that a TestCase and its tasks see each other's rows.

    Args:
        alias: the key of the backend in the setting TASKS.
    """
    backend, count = task_backends[alias], 0
    with backend.space.claims() as claims:
        while taken := [m for queue in backend.queues_of(backend.space) for m in claims.take(queue, 1000)]:
            for message in taken:
                try:
                    backend.run(message)
                except spool.Reject as rejected:
                    claims.reject([message], rejected.reason).result()
                except Exception as error:  # another attempt, until the queue's retries are used up
                    claims.fail(message, f"{type(error).__name__}: {error}").result()
                else:
                    claims.remove([message]).result()
                count += 1
    return count
