"""The routes of a forwarder: the forms of a route, the loops with rounds or threads, and the workers of a cluster."""
