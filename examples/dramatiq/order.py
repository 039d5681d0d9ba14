"""Order two dishes, and wait for the bills."""

import kitchen
from dramatiq.results import ResultFailure

SECONDS = 60

meal = kitchen.price.message("soup", 2) | kitchen.bill.message(7, "soup")
print(meal.run().get_result(block=True, timeout=SECONDS * 1000))
try:
    kitchen.price.send("stone", 1).get_result(block=True, timeout=SECONDS * 1000)
except ResultFailure as failure:
    print("refused:", failure.orig_exc_msg)
