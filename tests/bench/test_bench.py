"""The bench itself: it has every row that was asked for, measures and judges them, and its document is well formed."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench.__main__ as command
import spool
from bench import before, document, ten_million
from bench.calm import Calm
from bench.cases import CASES, base, calls, commits
from bench.cases.base import Case, Result, compare, drain
from bench.figures import Figure
from bench.peers.ours import Ours
from bench.setting import ONCE, Bench, Sizes, running
from bench.table import COLUMNS, Chart, Outcome, Report, Row, Verdict, markdown, no_longer_ok, unmeasured
from bench.walk import Walk

ROOT = Path(__file__).parents[2]

ROWS = [row for case in CASES for row in case.rows]
TINY = ["--no-flushes", "--once"]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each Markdown table; an AssertionError if a line of one has more or fewer than its head."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE):
        lines = [line.strip()[2:-2].split(" | ") for line in block.strip().splitlines()]
        assert {len(line) for line in lines} == {len(lines[0])}, block
        assert set(lines[1]) == {"---"}
        found.append([lines[0], *lines[2:]])
    return found


def test_raw_sqlite_and_ours_are_measured_and_the_rest_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    contenders = ["raw append", "xaspool", "SQLite"]
    command.main(["1", "100", "--peers", ",".join(contenders), "--directory", str(tmp_path), "--markdown", *TINY])
    said = capsys.readouterr().out
    _, main, *charted = tables(said[said.index("The last run: ") :])
    assert tuple(main[0]) == COLUMNS
    assert [tuple(line[:2]) for line in main[1:]] == [(row.case, row.target) for row in ROWS]
    for case, _, reached, verdict, ours, theirs, measured in main[1:]:
        if re.match(r"(put, 1(00)? a commit|get \+ acknowledge, 1(00)? at a time)(?!.*journal)", case):
            assert re.match(r"\d+\.\d\d × (raw append|SQLite)", reached)
            assert verdict in ("ok", "not reached")
            assert re.fullmatch(r"(.+ / ){2}.+ messages/s", ours)
            assert re.fullmatch(r"(raw append|SQLite) (.+ / ){2}.+ messages/s", theirs)
            assert re.fullmatch(r"[\w.]+, \d{4}-\d\d-\d\d", measured)
        else:
            assert (reached, verdict) == ("not measured (left out of this run)", "–")
    assert [[line[0] for line in table[1:]] for table in charted] == [contenders] * 4  # put and get, of 1 and of 100
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_the_results_measured_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_: Bench) -> Iterator[Result]:
        yield Outcome(ROWS[0], "1.00 × raw append", Verdict.OK)

    def interrupted(_: Bench) -> Iterator[Result]:
        yield Outcome(ROWS[1], "2.00 × raw append", Verdict.OK)
        raise KeyboardInterrupt

    kinds = measured, interrupted, measured
    cases = [Case(str(at), (row,), kind) for at, (row, kind) in enumerate(zip(ROWS, kinds, strict=False))]
    monkeypatch.setattr(command, "CASES", cases)
    report = Report({}, "")
    with running(str(tmp_path), ONCE, []) as here:
        command.run(here, ["0", "1", "2"], report)
    assert [outcome.reached for outcome in report.outcomes] == [
        "1.00 × raw append", "2.00 × raw append", "not measured"
    ]  # fmt: skip


def run_once(directory: Path, keys: list[str], *contenders: str) -> list[Outcome]:
    report = Report({}, "")
    with running(str(directory), ONCE, ["raw append", "xaspool", *contenders]) as here:
        command.run(here, keys, report)
    assert not list(directory.iterdir())
    return [outcome for outcome in report.outcomes if outcome.row.key in keys or outcome.ours is not None]


@pytest.mark.slow
def test_the_cases_that_people_write_run(tmp_path: Path) -> None:
    keys = ["each", "move", "two-phase"]
    outcomes = {outcome.row.key: outcome for outcome in run_once(tmp_path, keys, "SQLite")}
    assert set(outcomes) == {"put-each", "get-each", *keys[1:]}
    for key in ("put-each", "get-each"):
        assert re.match(r"\d+\.\d\d × SQLite", outcomes[key].reached)
    for key in ("move", "two-phase"):
        assert re.match(r"\d+\.\d\d × raw append", outcomes[key].reached)
    assert all(rate > 0 for rate in outcomes["two-phase"].ours.samples)  # type: ignore[union-attr]


@pytest.mark.slow
def test_messages_of_mixed_sizes_are_put_and_taken_by_each_contender(tmp_path: Path) -> None:
    put, get = run_once(tmp_path, ["mixed"], "SQLite")
    assert (put.row.key, get.row.key) == ("put-mixed", "get-mixed")
    for outcome in (put, get):
        assert re.match(r"\d+\.\d\d × raw append", outcome.reached)


@pytest.mark.slow
@pytest.mark.root
def test_a_case_runs_on_ext4_with_a_journal_which_is_gone_afterwards(tmp_path: Path) -> None:
    put, get = run_once(tmp_path, ["each-journal"], "SQLite")
    assert (put.row.key, get.row.key) == ("put-each-journal", "get-each-journal")
    assert put.row.case.endswith(", on ext4 with a journal")
    assert re.match(r"\d+\.\d\d × SQLite", put.reached)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.root
def test_the_journal_is_unmounted_when_a_case_fails_with_a_file_open(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), running(str(tmp_path), ONCE, ["xaspool"]) as here:
        there = here.on_journal
        assert isinstance(there, Bench)
        assert there.has_journal
        with (Path(there.directory) / "open").open("wb"):
            raise KeyboardInterrupt
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert not list(tmp_path.iterdir())


def test_rows_on_ext4_with_a_journal_tell_why_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    report = Report({}, "")
    command.run(Bench(str(tmp_path), ONCE), ["each-journal"], report)
    said = {outcome.note for outcome in report.outcomes if outcome.row.key.endswith("-each-journal")}
    assert said == {"needs root, to mount a file as ext4 with a journal"}


def test_messages_that_are_lost_or_doubled_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_LOST_SECONDS", 0.1)
    peer = Ours()
    peer.start(str(tmp_path))
    line = peer.line("queue")
    for there, expected in ((3, 3), (0, 0)):
        line.put_each(there)
        drain(line, expected)
    for there, expected in ((3, 4), (4, 3)):
        line.put_each(there)
        with pytest.raises(RuntimeError):
            drain(line, expected)
    line.close()


def test_calls_are_judged_by_both_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"put": (50, 80), "get": (71, 1), "two-phase commit of a put, all five calls": (1, 251)}
    found = {step: Walk(*counts.get(step, (1, 1))) for step in calls._MOST}
    monkeypatch.setattr(calls, "walks", lambda directory: found)
    verdicts = [each.verdict for each in calls._measure(Bench(str(tmp_path), ONCE)) if isinstance(each, Outcome)]
    ok, not_ok = Verdict.OK, Verdict.NOT_OK
    assert verdicts == [ok, not_ok, ok, ok, not_ok]


def test_a_row_that_was_ok_and_is_not_now_is_named(tmp_path: Path) -> None:
    first, second, third = ROWS[:3]
    page = tmp_path / "page.md"
    before = [Outcome(first, "1", Verdict.OK), Outcome(second, "1", Verdict.OK), Outcome(third, "1", Verdict.NOT_OK)]
    page.write_text(f"{document.BEGIN}\n{markdown(Report({}, '', before))}\n{document.END}")
    were_ok = document.rows_that_were_ok(page)
    assert were_ok == {(first.case, first.target), (second.case, second.target)}
    now = [Outcome(first, "2", Verdict.NOT_OK), unmeasured(second, ""), Outcome(third, "2", Verdict.NOT_OK)]
    assert no_longer_ok(Report({}, "", now), were_ok) == [f"It was ok before: {first.case}: {first.target}; now 2"]
    assert len(document.rows_that_were_ok()) >= 5


def test_a_ratio_below_its_target_is_not_ok() -> None:
    row = Row("key", "case", "≥ 0.9 × raw append")
    ours, raw = Figure("xaspool", [80, 90, 100], "messages/s"), Figure("raw append", [90, 100, 110], "messages/s")
    assert compare(row, ours, [raw], "raw append", 0.9).verdict is Verdict.OK
    assert compare(row, ours, [raw], "raw append", 0.91).verdict is Verdict.NOT_OK
    assert compare(row, ours, [raw], "PostgreSQL", 0.9).verdict is Verdict.UNKNOWN
    assert compare(row, ours, [raw], "raw append", 0.9).reached == "0.90 × raw append"


def test_more_is_asked_for_on_ext4_with_a_journal(tmp_path: Path) -> None:
    (target,) = commits.WAYS[0].targets["put"]
    ours, raw = Figure("xaspool", [60.0], "messages/s"), Figure("raw append", [100.0], "messages/s")
    for has_journal, verdict in ((False, Verdict.OK), (True, Verdict.NOT_OK)):
        here = Bench(str(tmp_path), ONCE)
        here.has_journal = has_journal
        assert target.judged(here, ours, [raw], "").verdict is verdict


def test_a_busy_disk_is_waited_for() -> None:
    seconds = iter([*[1.0] * 40, *[2.0] * 80, *[1.4] * 40, *[9.0] * 40])
    calm = Calm(lambda: next(seconds))
    assert calm.wait(0.01)
    assert not calm.wait(0)
    assert not calm.wait(0)
    assert calm.wait(0)
    assert not calm.wait(0)
    assert next(seconds, None) is None


def test_a_case_that_fails_does_not_spoil_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(here: Bench) -> Iterator[Result]:
        yield unmeasured(ROWS[0], "fine so far")
        raise OSError("the disk is gone")

    def fine(here: Bench) -> Iterator[Result]:
        yield unmeasured(ROWS[2], "fine")

    monkeypatch.setattr(command, "CASES", (Case("a", (ROWS[0], ROWS[1]), boom), Case("b", (ROWS[2],), fine)))
    report = Report({}, "")
    command.run(Bench(str(tmp_path), Sizes()), ["a", "b"], report)
    assert [outcome.note for outcome in report.outcomes] == [
        "fine so far", "it failed: OSError: the disk is gone", "fine",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_case_runs(tmp_path: Path) -> None:
    report = Report({}, "")
    with running(str(tmp_path), ONCE, ["raw append", "xaspool"]) as here:
        command.run(here, [case.key for case in CASES], report)
    assert [outcome.row for outcome in report.outcomes] == ROWS
    assert len([outcome for outcome in report.outcomes if outcome.ours is not None]) >= 15
    (pair,) = (outcome for outcome in report.outcomes if outcome.row.key == "pair")
    assert re.search(r"; \d+\.\d\d ms of processor a message$", pair.note)


# -- the document -----------------------------------------------------------------------------------------------------


def test_performance_md_has_a_well_formed_block() -> None:
    inside = document.block(document.DOCUMENT.read_text())
    main = next(table for table in tables(inside) if tuple(table[0]) == COLUMNS)
    assert [tuple(line[:2]) for line in main[1:]] == [(row.case, row.target) for row in ROWS]
    assert {line[3] for line in main[1:]} <= {verdict.value for verdict in Verdict}
    pictures = re.findall(r"\]\((performance-[\w-]+\.svg)\)", inside)
    assert len(pictures) >= 8
    assert {path.name for path in document.DOCUMENT.parent.glob("performance-*.svg")} == set(pictures)


def test_performance_md_shows_commands_that_exist() -> None:
    lines = re.findall(r"^\$ python -m bench (?!\.)(.*?)(?:  .*)?$", document.DOCUMENT.read_text(), re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        command.parser().parse_args(line.split())


def test_a_run_replaces_the_block_and_nothing_else() -> None:
    text = f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n"
    outcome = Outcome(ROWS[0], "1.00 × raw append", Verdict.OK)
    once = document.replaced(text, markdown(Report({"file system": "ext4"}, "python -m bench", [outcome])))
    assert once.startswith(f"before\n{document.BEGIN}\n")
    assert once.endswith(f"{document.END}\nafter\n")
    assert "old" not in once
    assert ROWS[0].case in once
    assert document.replaced(once, document.block(once)) == once
    for broken in ("", document.BEGIN, f"{document.END}{document.BEGIN}", text + document.END):
        with pytest.raises(ValueError):
            document.replaced(broken, "")


def test_a_run_of_some_cases_leaves_others_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document.charts, "draw", lambda _, path: Path(path).touch())
    page = tmp_path / "performance.md"
    page.write_text(f"{document.BEGIN}\n{document.END}")
    machine = {"processor": "2 cores", "memory": "24 GiB"}
    first = [Outcome(ROWS[0], "1.00 × raw append", Verdict.OK), unmeasured(ROWS[1], "left out of this run")]
    chart = Chart("first", "the first: µs", [Figure("xaspool", [1.0, 2.0, 4.0], "µs")])
    peer = ("xaspool", "xaspool 0", "yes", "flushes", "1.0", "1.0")
    document.write(Report(machine, "one", first, [peer], charts=[chart], measured="1.0"), page)
    second = [unmeasured(ROWS[0], "left out of this run"), Outcome(ROWS[1], "2.00 × raw append", Verdict.NOT_OK)]
    document.write(Report(machine, "two", second, measured="2.0"), page)
    main, peers, figures = tables(document.block(page.read_text()))[1:]
    assert [(line[2], line[-1]) for line in main[1:]] == [("1.00 × raw append", "1.0"), ("2.00 × raw append", "2.0")]
    assert [tuple(line) for line in peers[1:]] == [peer]
    assert figures[1:] == [["xaspool", "1", "2", "4"]]
    assert [path.name for path in tmp_path.glob("*.svg")] == ["performance-first.svg"]
    document.write(Report({**machine, "memory": "8 GiB"}, "three", second, measured="3.0"), page)
    (main,) = tables(document.block(page.read_text()))[1:]
    assert [line[2] for line in main[1:]] == ["not measured (left out of this run)", "2.00 × raw append"]
    assert not list(tmp_path.glob("*.svg")), "of another machine"


# -- ten million, with fewer ------------------------------------------------------------------------------------------


def test_the_long_run_takes_each_message_that_it_put(tmp_path: Path) -> None:
    arguments = f"{tmp_path}/space", 250, 100
    for phase in (ten_million.put, ten_million.count, ten_million.take):
        phase(*arguments)


@pytest.mark.parametrize("wrong", ["one lost", "one doubled", "two exchanged", "one more"])
def test_a_lost_doubled_exchanged_or_additional_message_is_noticed(tmp_path: Path, wrong: str) -> None:
    path, body = f"{tmp_path}/space", b"x" * 1016
    ten_million.put(path, 200, 100)
    with spool.open(path) as space:
        got = [message.body for message in space.get_many("queue", 100)]
        if wrong == "two exchanged":
            got[3], got[4] = got[4], got[3]
        elif wrong == "one doubled":
            got[4] = got[3]
        elif wrong == "one lost":
            del got[4]
        space.get_many("queue", 100)
        space.put_many("queue", [*got, *(n.to_bytes(8) + body for n in range(len(got), 200 + (wrong == "one more")))])
    with pytest.raises((AssertionError, spool.Empty)):
        ten_million.take(path, 200, 100)
    with pytest.raises(AssertionError):
        ten_million.count(path, 200, 100)


def test_the_command_that_is_written_down_names_no_directory_of_this_machine() -> None:
    assert command.without_directory(["1", "--directory", "/mnt/disk", "--write"]) == "python -m bench 1 --write"
    assert command.without_directory(["--directory=/mnt/disk", "--rounds", "3"]) == "python -m bench --rounds 3"


@pytest.mark.slow
def test_a_tree_is_compared_with_itself_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before.main([str(ROOT), "--directory", str(tmp_path), "--rounds", "1", "--only", "get, 100"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:34].strip() for line in lines[1:]] == ["get, 100 at a time"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        before.main([str(tmp_path)])
    assert "holds no spool/" in capsys.readouterr().err


@pytest.mark.slow
def test_the_pinned_tree_takes_part_in_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before.main(["--directory", str(tmp_path), "--rounds", "1"])
    assert [line[:34].strip() for line in capsys.readouterr().out.splitlines()[1:]] == list(before.ALL)


def test_a_door_takes_part_and_a_tree_without_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tree that is older than an adaptor has no such package."""
    older = tmp_path / "older"
    for name in ("forwarder", "recovery", "spool", "xa"):
        shutil.copytree(ROOT / name, older / name, ignore=shutil.ignore_patterns("__pycache__"))
    (there := tmp_path / "there").mkdir()
    rounds = [str(older), "--directory", str(there), "--rounds", "1"]
    before.main([*rounds, "--only", "worker"])
    assert re.search(r"^worker +[\d,]+ µs +[\d,]+ µs( +\d+\.\d\d){4}$", capsys.readouterr().out, re.MULTILINE)
    before.main([*rounds, "--only", "Dramatiq, send"])
    assert capsys.readouterr().out.splitlines()[1].split(maxsplit=2) == [
        "Dramatiq,", "send", "the tree has no dramatiq_xaspool"
    ]  # fmt: skip
    assert list(there.iterdir()) == []


def test_the_pinned_tree_is_in_the_repository_and_has_the_packages(tmp_path: Path) -> None:
    commit = before.BASELINE.read_text().split()[0]
    if subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, check=False, capture_output=True).returncode:
        pytest.skip("this copy of the repository has no history")
    tree = before.extracted(commit, tmp_path / "baseline")
    assert {"forwarder", "recovery", "spool", "xa"} <= {entry.name for entry in tree.iterdir()}
    with pytest.raises(SystemExit, match="is not in this repository"):
        before.extracted("0" * 40, tmp_path / "none")
