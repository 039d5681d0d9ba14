"""Damaged and hostile files: what is damaged is named and never delivered, the rest is served."""
