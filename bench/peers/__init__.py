"""The contenders, each in a separate module, with one small interface (``base``)."""

from bench.peers.base import Peer
from bench.peers.diskcache import DiskCache
from bench.peers.huey import Huey
from bench.peers.litequeue import LiteQueue
from bench.peers.ours import Ours
from bench.peers.persistqueue import PersistQueue
from bench.peers.postgresql import PostgreSQL
from bench.peers.raw import Raw
from bench.peers.redis import Redis
from bench.peers.simplebroker import SimpleBroker
from bench.peers.sqlite import SQLite

# The order of the tables.
PEERS: tuple[type[Peer], ...] = (
    Raw, Ours, SQLite, SimpleBroker, PersistQueue, LiteQueue, DiskCache, Huey, Redis, PostgreSQL,
)  # fmt: skip
