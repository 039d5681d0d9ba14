"""For spaces in which what failed may be tried again at once: their queues wait only if they say so."""

AT_ONCE = {"retry_delay": 0.0}
