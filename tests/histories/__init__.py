"""Histories: the calls of a process, the contents that each call promises, and the contents that must be found.

Each history runs under power cuts, kills and mirrors (``tests/crash``), failing calls of the disk (``tests/faults``),
and signals (``tests/environment``). ``table`` lists them.
"""
