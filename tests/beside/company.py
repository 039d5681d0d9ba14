"""Two real processes that commit all the while, for tests of programs beside them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import spool
from tests.beside.committer import QUEUE

ROOT = Path(__file__).parents[2]
_PATIENT_SECONDS = 120


@contextmanager
def two_that_commit(directory: Path, *, at_once: bool = True) -> Iterator[None]:
    """Two processes commit in each space below a directory, from the beginning of the block to its end.

    Afterwards no message of theirs is lost or doubled, and each space that exists is whole.

    at_once: whether a space exists already. The block then begins after both have committed.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(_committer(directory)) for _ in range(2)]
        if at_once:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.read(1) == "."
        try:
            yield
        finally:
            for process in processes:
                assert process.stdin is not None
                process.stdin.close()
            said = [process.stdout.read() for process in processes if process.stdout is not None]
        assert [process.wait(_PATIENT_SECONDS) for process in processes] == [0, 0]
    assert any(said), "both found a space"
    ends = [json.loads(text.removeprefix(".")) for text in said]
    for path in {path for end in ends for path in end}:
        lists = [end.get(path, ([], [])) for end in ends]
        _expect_whole(Path(path), [id for put, _ in lists for id in put], [id for _, got in lists for id in got])


@contextmanager
def _committer(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.beside.committer", str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _expect_whole(path: Path, put: list[str], got: list[str]) -> None:
    with spool.open(path) as space:
        left = [message.id for message in space.browse(QUEUE)]
        assert sorted(got + left) == sorted(put)
        assert space.check() == []
