"""Tests of how commits become numbered, durable and visible."""
