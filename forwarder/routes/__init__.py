"""The routes of a forwarder: their forms, their loops (with rounds or with threads), and the workers of a cluster."""
