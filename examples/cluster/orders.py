"""The service of the example. It returns the name of its machine, and checks that this machine has no space."""

import os
import socket
import time


def ship(message):
    assert not os.path.exists(os.environ["SPACE"])
    time.sleep(0.002)
    return socket.gethostname()
