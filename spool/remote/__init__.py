"""Branches that are written by processes which have not opened the space, and the locks of their coordinator."""
