"""Rows and short requests of Spark over HTTP: the calls of a client, and the work of a cluster's machines that do not
see the space."""
