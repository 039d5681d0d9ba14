"""The tasks."""

try:
    from django.tasks import task  # Django 6
except ImportError:
    from django_tasks import task

MENU = {"soup": 4.5, "cake": 3.0}


@task
def price(dish: str) -> float:
    if dish not in MENU:
        raise ValueError(f"no such dish: {dish}")
    return MENU[dish]


@task(queue_name="mail", priority=10)
async def thank(table: int) -> str:
    return f"thanks to table {table}"
