"""Damaged and hostile files: damage is named and never delivered; all other messages are served."""
