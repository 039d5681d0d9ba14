"""The processors that this process may use."""

import math
import os


def cores() -> int:
    """Return how many cores this process may use. A container's limit counts, as in Java."""
    count = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # the container sets no limit
        return count
