"""Pipelines of inbound hooks, translation with routes, a queue for each destination, outbound hooks, and services."""
