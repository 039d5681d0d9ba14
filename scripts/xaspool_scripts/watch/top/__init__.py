"""``spool-admin top``: the queues of a space in a terminal, the details of a queue, and the troubles of the space."""
