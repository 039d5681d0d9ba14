"""The actors of a kitchen. Workers: ``dramatiq kitchen``."""

import dramatiq
from dramatiq.results import Results

from dramatiq_xaspool import XaspoolBroker, XaspoolResults

MENU = {"soup": 4.5, "cake": 3.0}

broker = XaspoolBroker("inn")
broker.add_middleware(Results(backend=XaspoolResults("inn")))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True, max_retries=0)
def price(dish: str, count: int) -> float:
    if dish not in MENU:
        raise ValueError(f"no such dish: {dish}")
    return MENU[dish] * count


@dramatiq.actor(store_results=True)
def bill(table: int, dish: str, total: float) -> str:
    return f"{dish} for table {table}: {total}"
