"""Pipelines: inbound hooks, translation with routes, one queue for each destination, outbound hooks, services."""
