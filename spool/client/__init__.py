"""Spaces by HTTP: the forms of messages and errors that client and server share, and the client."""
