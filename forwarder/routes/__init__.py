"""The routes of a forwarder: how they are given, the loop of each, in rounds or in threads, and a cluster's workers."""
