"""The service of the example: it tells on which machine it ran, and checks that the space is not there."""

import os
import socket
import time


def ship(message):
    assert not os.path.exists(os.environ["SPACE"])
    time.sleep(0.002)
    return socket.gethostname()
