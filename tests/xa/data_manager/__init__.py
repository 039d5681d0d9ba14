"""Tests of queue spaces in the transactions of zope's package ``transaction``."""
