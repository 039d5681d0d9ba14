"""Spaces on other machines, by Arrow Flight: addresses, tickets, and the calls of a client."""
