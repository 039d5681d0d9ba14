"""dramatiq_xaspool: the broker and the results, with Dramatiq's own workers."""
