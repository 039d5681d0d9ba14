"""A stream and reads beside a forwarder: ``python -m tests.forwarder.kills.beside ADDRESS CHECKPOINT``.

A stream copies the queue *done* of a served space into its queue *copies*, and begins again after an error. Meanwhile
batch reads expect each message at most once. A line of output is a batch read; a line with "twice" is a failure.
"""

import logging
import sys
import time

import forwarder
from forwarder import session

PAUSE_SECONDS = 2.0
log = logging.getLogger(__name__)


def main(address: str, checkpoint: str) -> None:
    spark = session.start("local[1]")
    forwarder.register(spark)
    most, query = 0, None
    while True:
        try:
            if query is None or not query.isActive:
                stream = spark.readStream.format("spool").option("queue", "done").load(address)
                copying = stream.select("body").writeStream.format("spool")
                query = copying.options(queue="copies", checkpointLocation=checkpoint).start(address)
            done = spark.read.format("spool").option("queue", "done").load(address)
            bodies = [bytes(row.body) for row in done.select("body").collect()]
        except Exception as error:  # the server is away, or begins again
            log.warning("%s", str(error).splitlines()[:1])
        else:
            fault = " twice" if len(set(bodies)) < len(bodies) else " lost" if len(bodies) < most else ""
            most = len(bodies)
            print(f"{most} read{fault}", flush=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
