"""Exports: whole or noticed, whatever happens to them, and made of a space that others use meanwhile."""
