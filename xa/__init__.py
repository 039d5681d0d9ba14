"""X/Open XA for queue spaces: xids, the resource manager with its flags and codes, and a transaction manager."""

from spool.model.xid import Xid
from xa.codes import *  # noqa: F403 (X/Open's names, all of them)
from xa.codes import XAError
from xa.dbapi import connect
from xa.manager import GlobalTransaction, Recovery, TransactionManager
from xa.resource_manager import ResourceManager

__all__ = ["GlobalTransaction", "Recovery", "ResourceManager", "TransactionManager", "XAError", "Xid", "connect"]
