"""Transactions over queue spaces and other resources.

* ``TransactionManager``: one transaction over spaces and databases.
* ``ResourceManager``: a space under the calls of X/Open XA, with their flags and codes.
* ``connect``: a space under the two-phase methods of PEP 249.
* ``xa.zope``: a space in the transactions of zope's package ``transaction``, which must be installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spool.model.xid import Xid
from xa.codes import *  # noqa: F403 (X/Open's names, all of them)
from xa.codes import XAError
from xa.dbapi import connect
from xa.manager import GlobalTransaction, Recovery, TransactionManager
from xa.resource_manager import ResourceManager

__all__ = ["GlobalTransaction", "Recovery", "ResourceManager", "TransactionManager", "XAError", "Xid", "connect"]

if TYPE_CHECKING:
    from xa import zope as zope


def __getattr__(name: str) -> Any:
    """Import ``xa.zope`` at its first use, because the package ``transaction`` need not be installed."""
    if name == "zope":
        return import_module("xa.zope")
    raise AttributeError(f"module 'xa' has no attribute {name!r}")
