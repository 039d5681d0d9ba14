"""Places an order, and waits until it is shipped: the payment and two parcels side by side, and then the shipment."""

from celery import chord
from tasks import charge, pack, ship

order = "4711"
parts = [charge.s(order, 1290), pack.s(order, "tea"), pack.s(order, "a cup")]
print(chord(parts)(ship.s(order)).get(timeout=60))
