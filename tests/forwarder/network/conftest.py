"""Fixtures for tests of the server of spaces: a server in this process, and a connection to it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import forwarder
import spool
from tests.spaces import space_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

from forwarder.web.server import WebServer
from forwarder.web.sockets import in_url, listening


class Served(WebServer):
    """A server with the address that it was given."""

    def __init__(self, host: str, port: int, spaces: dict[str, str], tokens: Any, **options: Any) -> None:
        listeners = listening(host, port)
        self.port = listeners[0].getsockname()[1]
        self._where = f"http{'s' if options.get('certificate') else ''}://{in_url(host)}:{self.port}"
        super().__init__(listeners, spaces, tokens, **options)

    def address(self, space: str) -> str:
        return f"{self._where}/{space}"


Serve = Callable[..., Served]


@pytest.fixture(scope="package")
def spark(spark: "SparkSession") -> "SparkSession":
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    forwarder.register(spark)
    return spark


space = space_with("orders", "replies")


@pytest.fixture
def serve(space: spool.Space) -> Iterator[Serve]:
    """Start a server of the space ``shop``. The arguments are those of ``WebServer``."""
    with ExitStack() as opened:

        def serve(tokens: Any = None, **options: Any) -> Served:
            host, port = options.pop("host", "127.0.0.1"), options.pop("port", 0)
            server = Served(host, port, options.pop("spaces", {"shop": space.path}), tokens, **options)
            opened.callback(server.close)
            return server

        yield serve


@pytest.fixture
def address(serve: Serve) -> str:
    return serve().address("shop")
