"""The demonstration runs, and its comparison would notice lost and doubled messages."""

import subprocess
import sys
from pathlib import Path

import pytest

import spool
from spool.model.message import Message
from spool.model.position import Position
from xaspool_scripts.demo import ORDERS, compare, is_perfect, kill_pipeline, standard_library
from xaspool_scripts.sample import _SampleHandler, _SampleServer, describe


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demonstration_ends_with_nothing_lost() -> None:
    found = subprocess.run([sys.executable, "-m", "xaspool_scripts.demo"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "Nothing lost, nothing doubled" in found.stdout
    assert "SIGKILL" in found.stdout
    assert "orders were translated, each of them whole, in one commit" in found.stdout
    assert "Traceback" not in found.stderr


@pytest.mark.slow
def test_the_demonstration_s_pipeline_is_killed_and_finishes(tmp_path: Path) -> None:
    def start(program: str, *options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", f"xaspool_scripts.{program}", "-s", str(tmp_path / "s"), *options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    with spool.create(tmp_path / "s") as space:
        done = kill_pipeline(space, str(tmp_path), start)
        assert 0 < done <= ORDERS
        assert sum(stats.ready for stats in space.stats().values()) == 0


@pytest.mark.parametrize(("error", "is_told"), [(ConnectionResetError, False), (ValueError, True)])
def test_the_demonstration_s_web_service_says_nothing_of_a_caller_that_was_killed(
    error: type[Exception], is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with _SampleServer(("127.0.0.1", 0), _SampleHandler) as server:
        try:
            raise error
        except error:
            server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) == is_told


def reply(service: str, name: str, body: bytes, **changed: object) -> Message:
    answer = {"service": service, **describe(body), **changed}
    return Message("0" * 32, "replies", answer, 0.0, Position(1, 0), {"headers": {"filename": name}})


def test_the_comparison_notices_missing_doubled_and_different_replies(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 3)
        files.append((name, tmp_path / name))
    right = [reply(service, name, name.encode() * 3) for service in ("python", "http") for name in ("a", "b")]
    assert is_perfect(compare(files, right))
    for name, wrong in (
        ("missing", right[1:]),
        ("doubled", [*right, right[0]]),
        ("different", [*right[1:], reply("python", "a", b"other")]),
        ("unexpected", [*right, reply("python", "c", b"")]),
    ):
        assert compare(files, wrong)[name] == 1
        assert not is_perfect(compare(files, wrong))


@pytest.mark.slow
def test_the_real_input_is_large_and_varied() -> None:
    files = standard_library()
    sizes = [path.stat().st_size for _, path in files]
    assert len(files) > 500  # a thousand and more, where the standard library is installed with its own tests
    assert min(sizes) == 0
    assert max(sizes) > 100_000
    assert len({name for name, _ in files}) == len(files)
