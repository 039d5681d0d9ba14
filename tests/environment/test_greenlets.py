"""gevent and eventlet: a space refuses a process whose threads they have replaced, so that no process stands still."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spaces import path_with

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "gevent, threads only": "from gevent import monkey; monkey.patch_thread()",
    "gevent, time only": "from gevent import monkey; monkey.patch_time()",
    "gevent, select only": "from gevent import monkey; monkey.patch_select()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
    "eventlet, threads only": "import eventlet; eventlet.monkey_patch(all=False, thread=True)",
}


path = path_with("orders")


def run(program: str, *arguments: object) -> str:
    """Run a program in a separate process; return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def patch_of(library: str) -> str:
    pytest.importorskip(library.partition(",")[0])
    return PATCHES[library]


OPEN = """
import os, sys, spool
path = sys.argv[1]
for call in (spool.open, spool.create):
    place = path if call is spool.open else path + " new"
    try:
        call(place)
    except spool.ProtocolError as error:
        print(error)
print(os.path.exists(path + " new"))
"""


@pytest.mark.every(4)
@pytest.mark.parametrize("library", PATCHES)
def test_a_process_with_replaced_threads_opens_no_space(path: Path, library: str) -> None:
    *refusals, there = run(f"{patch_of(library)}\n{OPEN}", path).splitlines()
    assert there == "False", "no directory is left"
    assert len(refusals) == 2
    for text in refusals:
        assert text.startswith(f"{library.partition(',')[0]} has replaced the threads of this process")
        assert "gunicorn -k gthread" in text
        assert "-P threads or -P prefork" in text


LATER = """
import sys, spool
with spool.open(sys.argv[1]) as space:
    id = space.put("orders", "before")
    PATCH
    for options in ({}, {"correlation_id": "c"}, {"message_id": "0" * 32}):
        try:
            for _ in range(2):  # (the first get without options gets the message, and waits for nothing)
                space.get("orders", timeout=None, **options)
        except spool.ProtocolError as error:
            print(str(error).split()[0])
    space.put("orders", "after")
    print([message.body for message in space.browse("orders")])
"""


@pytest.mark.every(2)
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_call_of_an_open_space_does_not_wait_once_the_threads_are_replaced(path: Path, library: str) -> None:
    output = run(LATER.replace("PATCH", patch_of(library)), path).split("\n")
    assert output[:4] == [library] * 3 + ["['after']"]


POOL = """
import sys, gevent, gevent.monkey, spool
gevent.monkey.patch_socket()
with spool.open(sys.argv[1]) as space:
    ticks = []
    def tick():
        while True:
            ticks.append(1)
            gevent.sleep(0.01)
            if len(ticks) == 5:
                pool.apply(space.put, ("orders", "a"))
    pool = gevent.get_hub().threadpool
    ticker = gevent.spawn(tick)
    message = pool.apply(space.get, ("orders",), {"timeout": 60})
    ticker.kill()
    print(message.body, len(ticks) >= 5)
"""


def test_a_greenlet_gets_a_message_in_the_threadpool_while_others_go_on(path: Path) -> None:
    pytest.importorskip("gevent")
    assert run(POOL, path) == "a True\n"
