"""A queue by HTTP as an application keeps it in PostgreSQL: ``python -m bench.postgresql_web DIRECTORY``.

DIRECTORY has the server's Unix socket. The program prints its port. The addresses are those of ``spool-serve``: a put
is an insert, a claim an update of a row that FOR UPDATE SKIP LOCKED has chosen, and the end of a claim a delete.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_CONNECTIONS = 16
_TABLE = (
    "create table web (id bigserial primary key, body bytea, due timestamptz not null default now()); "
    "create index on web (due)"
)
_PUT = "insert into web (body) values (%s) returning id"
_CLAIM = (
    "update web set due = now() + interval '60 s' where id = "
    "(select id from web where due <= now() order by id limit 1 for update skip locked) returning id, body"
)
_END = "delete from web where id = %s"

_free: "asyncio.Queue[psycopg.AsyncConnection[Any]]" = asyncio.Queue()


async def _row(statement: str, *arguments: object) -> Any:
    connection = await _free.get()
    try:
        done = await connection.execute(statement, arguments, prepare=True, binary=True)
        return await done.fetchone() if done.description else None
    finally:
        _free.put_nowait(connection)


async def _put(request: Request) -> Response:
    (id_,) = await _row(_PUT, await request.body())
    return JSONResponse({"id": id_}, 201)


async def _claim(request: Request) -> Response:
    if (found := await _row(_CLAIM)) is None:
        return Response(status_code=204)
    return Response(found[1], headers={"Spool-Receipt": str(found[0])})


async def _end(request: Request) -> Response:
    await _row(_END, int(request.path_params["receipt"]))
    return Response(status_code=204)


@asynccontextmanager
async def _connected(app: Starlette) -> AsyncIterator[None]:
    where = f"host={sys.argv[1]} user=bench dbname=postgres"
    for place in range(_CONNECTIONS):
        connection = await psycopg.AsyncConnection.connect(where, autocommit=True)
        if not place:
            await connection.execute(f"drop table if exists web; {_TABLE}")
        _free.put_nowait(connection)
    yield


def main() -> None:
    app = Starlette(
        routes=[
            Route("/v1/bench/queues/queue/messages", _put, methods=["POST"]),
            Route("/v1/bench/queues/queue/claims", _claim, methods=["POST"]),
            Route("/v1/bench/claims/{receipt}", _end, methods=["DELETE"]),
        ],
        lifespan=_connected,
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])


if __name__ == "__main__":
    main()
