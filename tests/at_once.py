"""Options of spaces whose queues deliver a failed message again at once, unless a queue sets a retry delay."""

AT_ONCE = {"retry_delay": 0.0}
