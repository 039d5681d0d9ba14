"""The types of files on the command line: of one that is put, and of those that a queue takes."""

import json
from pathlib import Path

import spool
from tests.scripts.conftest import Run

CUT_OFF = b'{"count": 2'


def test_a_file_on_the_command_line_goes_by_the_same_table(path: Path, tmp_path: Path, run: Run) -> None:
    with spool.open(path) as space:
        space.change_queue("orders", drop_types={".csv": "text/csv"})
        for name, data, body in (
            ("a.json", b'{"a": 1}', {"a": 1}),
            ("a.txt", b"x", "x"),
            ("a.csv", b"y", "y"),
            ("a", b"z", b"z"),
        ):
            (tmp_path / name).write_bytes(data)
            assert run("message", "put", "orders", "--file", tmp_path / name).code == 0
            assert space.get("orders").body == body
        (tmp_path / "a.json").write_bytes(CUT_OFF)
        done = run("message", "put", "orders", "--file", tmp_path / "a.json")
        assert (done.code, done.out) == (2, b"")
        assert "a.json: it is not json" in done.err
        assert "--content-type" in done.err
        assert run("message", "put", "orders", "--file", tmp_path / "a.json", "--content-type", "text/plain").code == 0
        assert space.get("orders").body == CUT_OFF


def test_the_command_line_sets_the_types_of_a_queue(path: Path, run: Run) -> None:
    with spool.open(path) as space:
        assert run("queue", "create", "more", "--drop-type", ".csv=text/csv", "--drop-type", ".txt=bytes").code == 0
        assert space.queues()["more"].drop_types == {".csv": "text/csv", ".txt": "bytes"}
        assert run("queue", "change", "more", "--drop-type", ".json=bytes").code == 0
        assert json.loads(run("queue", "show", "more", "--json").out)["drop_types"] == {".json": "bytes"}
        assert run("queue", "change", "more", "--drop-type", "none").code == 0
        assert space.queues()["more"].drop_types == {}
        for wrong in (["csv"], [".csv=text/csv", "--drop-type", ".csv=bytes"], [".csv=csv"]):
            done = run("queue", "change", "more", "--drop-type", *wrong)
            assert (done.code, "--drop-type" in done.err) == (2, True), done
