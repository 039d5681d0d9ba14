"""Note the functions of the product that a program enters, if the program finds this module in its PYTHONPATH."""

from tests.selection.probes import install

install()
