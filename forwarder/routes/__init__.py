"""The routes of a forwarder: their forms, their loops in rounds or in threads, and the workers of a cluster."""
