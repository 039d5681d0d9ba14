"""Order dishes, or show the results of the last order."""

import os
import sys
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

from django.db import transaction  # noqa: E402
from shop.tasks import price  # noqa: E402

IDS = Path("ids.txt")

if sys.argv[1:] != ["--results"]:
    with transaction.atomic():  # with the rows of the order: all are committed, or nothing
        results = [price.enqueue(dish) for dish in sys.argv[1:]]
    IDS.write_text("\n".join(result.id for result in results))
for result in map(price.get_result, IDS.read_text().split()):
    outcome = (
        [result.return_value] if result.status == "SUCCESSFUL" else [e.exception_class_path for e in result.errors]
    )
    print(f"{result.args[0]}: {result.status}", *outcome)
