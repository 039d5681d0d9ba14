"""The options --long and --deep, the skips of tests that this machine cannot run, and the fixtures of all tests."""

import asyncio
import faulthandler
import gc
import inspect
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import spool
from spool import sharing
from spool.disk.disk import Disk
from spool.model import codecs
from tests import door
from tests.clocks import MovedClock
from tests.held import PATIENT_SECONDS, Gathering
from tests.led import another_process_leads
from tests.meanwhile import Processes, Watched
from tests.simdisk import few_slots
from tests.strides import Stride, of_this_run
from xaspool_scripts.terminal.signals import ENDING

# A container may forbid Python to keep compiled modules. Each process of the tests would compile them again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A flush takes as long as the disk likes, so no example has a deadline.
settings.register_profile("long", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=30)


# A shell ignores Ctrl-C for the programs that it runs in the background, and ``nohup`` ignores SIGHUP. Python keeps
# these settings. The tests of these signals and the programs that they start would wait for a signal in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a space that is not yet created."""
    return tmp_path / "space"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules that the test writes into its directory, and restore the path of imports."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(f"{tmp_path}/"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _handlers_of_signals() -> Iterator[None]:
    """Restore the handlers that a program set in the process of the tests.

    Tests restore SIGTERM and SIGINT themselves, because the fixture of a Spark session may change them for many tests.
    SIGALRM is the time limit's of a test.
    """
    with _restored({*ENDING} - {signal.SIGTERM, signal.SIGINT, signal.SIGALRM}):
        yield


@pytest.fixture(autouse=True, scope="session")
def _small_ring() -> Iterator[None]:
    """Give the feed few slots in all processes of these tests, but not in the programs that the tests start."""
    with few_slots():
        yield


@pytest.fixture(autouse=True, scope="module")
def _handlers_of_signals_as_before() -> Iterator[None]:
    """Restore the handlers of signals after each module: a program that its tests run in this process sets other
    ones."""
    with _restored({signal.SIGINT, signal.SIGTERM}):
        yield


@contextmanager
def _restored(signals: set[signal.Signals]) -> Iterator[None]:
    """Restore the handlers of these signals at the end."""
    before = {number: signal.getsignal(number) for number in signals}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="module")
def _shared_spaces() -> Iterator[None]:
    """Close the spaces that ``spool.shared`` opened for the tests of the module, whose directories do not remain."""
    yield
    sharing._close_all()
    sharing._spaces.clear()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Turn off the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True, scope="module")
def _loggers_as_before() -> Iterator[None]:
    """Restore the loggers after each module, for the same reason. (pytest adds and removes its handlers with each
    test.)"""
    before = {logger: (logger.level, logger.propagate, [*logger.handlers]) for logger in _loggers()}
    yield
    for logger in _loggers():
        level, propagate, handlers = before.get(logger, (logging.NOTSET, True, []))
        logger.setLevel(level)
        logger.propagate = propagate
        for handler in [*logger.handlers]:
            if handler not in handlers and not type(handler).__module__.startswith("_pytest."):
                logger.removeHandler(handler)


def _loggers() -> list[logging.Logger]:
    named = logging.Logger.manager.loggerDict.values()
    return [logging.root, *(logger for logger in named if isinstance(logger, logging.Logger))]


def _part(text: str) -> tuple[int, int]:
    """``2/4``: the second of four."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError
    return part, parts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the slow tests too")
    parser.addoption("--deep", action="store_true", help="--long, and more of each cut and interleaving (days)")
    parser.addoption("--led", action="store_true", help="let another process lead: it makes the tests' commits")
    parser.addoption("--part", type=_part, metavar="N/M", help="run only each M-th test, beginning with the N-th")
    parser.addoption("--schedules", type=int, default=2, help="how many of each sort the interleavings try (2)")


# These take longest, so they begin first: where processes share the tests, none waits for the others at the end.
LONGEST = (
    "tests/crash/test_every_crash_point.py", "tests/forwarder", "tests/faults/test_every_call_fails.py",
    "tests/crash/test_interleavings.py", "tests/corruption/test_every_file.py", "tests/environment", "tests/kills",
    "tests/xa/manager", "tests/crash", "tests/features", "tests/faults", "tests/corruption", "tests/package",
    "tests/test_docs.py", "tests/torture", "tests/examples", "tests/console",
)  # fmt: skip
# Without --led, the tests of these run twice: as they are, and beside another process that leads.
LED_TOO = (
    "tests/features/test_q.py", "tests/intake/test_intake.py", "tests/log/test_golden_bytes.py",
    "tests/spool/test_engine_model.py", "tests/transactions/test_gets.py", "tests/workers/test_outcomes.py",
    "tests/xa/test_resource_manager.py",
)  # fmt: skip
# The tests of each line share devices, servers, an installation or a Spark session, so they run in one process.
TOGETHER = (
    ("tests/filesystems",),
    ("tests/xa/manager",),
    ("tests/package/test_a_newcomers_way.py", "tests/package/test_console_files.py", "tests/package/test_wheel.py"),
    ("tests/forwarder/dataframes", "tests/forwarder/network", "tests/forwarder/test_session.py"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {"root": "needs root"} if os.geteuid() else {}
    if shutil.which("strace") is None:
        missing["strace"] = "needs the program strace, which is not installed"
    for item in items:
        if (mark := item.get_closest_marker("unled")) and is_led(item):
            item.add_marker(pytest.mark.skip(reason=f"not beside a leader: {mark.args[0]}"))
        for mark, reason in missing.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))
    chosen = [*of_this_run(items, long=config.getoption("--long"), deep=config.getoption("--deep"))]
    if part := config.getoption("--part"):
        chosen = [item for item in chosen if not item.get_closest_marker("skip")][part[0] - 1 :: part[1]]
    config.hook.pytest_deselected(items=[*{*items} - {*chosen}])
    items[:] = sorted(chosen, key=lambda item: _turn(item.nodeid))


def _turn(nodeid: str) -> int:
    return next((turn for turn, path in enumerate(LONGEST) if nodeid.startswith(path)), len(LONGEST))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    led, path = metafunc.config.getoption("--led"), metafunc.definition.nodeid.partition("::")[0]
    if not led and path in LED_TOO:
        metafunc.parametrize("_leader", [False, True], ids=[pytest.HIDDEN_PARAM, "led"], indirect=True)


def is_led(item: pytest.Item) -> bool:
    """Return whether another process leads in this test."""
    parameters = getattr(item, "callspec", None)
    return bool(item.config.getoption("--led") or (parameters and parameters.params.get("_leader")))


@pytest.fixture(autouse=True, scope="module")
def _leader(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let another process lead, if the tests of the module run in this mode (see ``tests.led``)."""
    if not (request.config.getoption("--led") or getattr(request, "param", False)):
        yield
        return
    with another_process_leads():
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)
    config.option.long |= config.option.deep
    settings.load_profile("long" if config.option.long else "quick")
    config.option.loadscopereorder = False  # pytest-xdist would begin with the files that have the most tests


_STDERR = pytest.StashKey[int]()
_HANGS = 2  # times its time limit


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process of a test that hangs although its time is over, and print where each thread is.

    The time limit raises an exception in the test, once. A test, or the end of a test, can lose this exception.
    """
    mark = item.get_closest_marker("timeout")
    limit = float(mark.args[0] if mark else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(_HANGS * limit, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), PATIENT_SECONDS))
    return True


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and the thousands of collected tests, which live to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process one file at a time, or the files whose tests belong together. A test that ended its process
    does not run again."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((paths[0] for paths in TOGETHER if path.startswith(paths)), path)

        def remove_node(self, node: Any) -> str | None:
            crashed: str | None = super().remove_node(node)
            for tests in self.workqueue.values():
                if crashed in tests:
                    tests[crashed] = True  # (otherwise the next process would crash in this test, too)
            return crashed

    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape file names that are no text, because pytest-xdist sends a test's output to the other process as text."""
    return _escaped((yield))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_escaped, value))
    return value


# -- the rows of docs/features.md -------------------------------------------------------------------------------------

FEATURES = Path(__file__).parents[1] / "docs" / "features.md"


def rows(*states: str) -> set[str]:
    """The ids of the behaviours that are in one of these states: those that are promised if none is named."""
    found = re.findall(
        r"^\| ([A-Z][0-9]{2}) \| .* \| (done|in part|not yet)\b[^|]* \|", FEATURES.read_text(), re.MULTILINE
    )
    return {row for row, state in found if state in (states or ("done", "in part"))}


def rows_of(test: str) -> set[str]:
    """Return the ids of the rows in a test's name: ``test_q05_e09_…``."""
    found = re.match(r"test_((?:[a-z][0-9]{2}_)+)", test)
    return set(found[1].upper().rstrip("_").split("_")) if found else set()


# -- counts that a whole run must record ------------------------------------------------------------------------------

# The names of recorded counts begin with one of these words; a whole run records a count for each word.
EVIDENCE = (
    "clock", "closings", "corrupted files", "crash tests", "faults", "forks", "hostile inputs", "interleavings",
    "interrupts", "kills", "mutation sites", "narrow windows", "planted bugs", "run/ deleted", "stopped processes",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of the whole suite, or of all but some directories, if a row has no passed test or a count is missing.
    A row whose tests this machine cannot run is only reported. (``test_docs`` checks that each row has a test.)"""
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    if config.option.keyword or config.option.collectonly or config.getoption("--part"):
        return
    outcomes = {
        outcome: {row for report in reporter.getreports(outcome) for row in rows_of(_function(report.nodeid))}
        for outcome in ("passed", "skipped", "failed")
    }
    missing = set.union(*outcomes.values()) - outcomes["passed"]
    expected = EVIDENCE if shutil.which("strace") else [kind for kind in EVIDENCE if kind != "kills"]
    found = [name for name, count in _evidence(reporter).items() if count]
    absent = [kind for kind in expected if not any(name.startswith(kind) for name in found)]
    if config.option.ignore:
        absent = []
    config.stash[_MISSING] = {
        "rows of docs/features.md without a test that passed": sorted(missing),
        "evidence of which there is none": absent,
    }
    if (missing - outcomes["skipped"] or absent) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_MISSING = pytest.StashKey[dict[str, list[str]]]()


def _function(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts that the tests recorded, and the checks that failed before pytest began, so that passing tests
    do not hide these."""
    for name, count in sorted(_evidence(terminalreporter).items()):
        terminalreporter.write_line(f"{name}: {count:,}")
    for what, missing in terminalreporter.config.stash.get(_MISSING, {}).items():
        if missing:
            terminalreporter.write_line(f"{what}: {', '.join(missing)}", red=True)
    if terminalreporter.getreports("deselected") and not terminalreporter.config.option.long:
        terminalreporter.write_line("Slow tests are deselected; they run with --long.")
    if failed := os.environ.get("XASPOOL_FAILED_CHECKS", "").split():
        terminalreporter.write_line(f"CHECKS FAILED before the tests: {', '.join(failed)}; see above", red=True)


def _evidence(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    """Return the sums of the properties that tests recorded: numbers, or numbers by kind."""
    sums: Counter[str] = Counter()
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, value in getattr(report, "user_properties", ()) if report.when == "call" else ():
            if isinstance(value, dict):
                sums.update({f"{name}, {kind}": count for kind, count in value.items()})
            else:
                sums[name] += value
    return sums


@pytest.fixture
def depth(pytestconfig: pytest.Config) -> str:
    """Return the column of its table that a slow test takes: "long" or "deep"."""
    return "deep" if pytestconfig.getoption("--deep") else "long"


@pytest.fixture
def stride(pytestconfig: pytest.Config) -> Stride:
    """Return a function for tests that try every n-th place of many: it returns n, but 1 with --long."""
    return lambda n: 1 if pytestconfig.getoption("--long") else n


_MEMORY_BYTES = 2 << 30  # the least free memory in which tests keep files


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory in memory, where files and flushes cost little."""
    there = os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > _MEMORY_BYTES
    with tempfile.TemporaryDirectory(prefix="xaspool-", dir="/dev/shm" if there else None) as directory:
        yield Path(directory)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: for tests with thousands of small files that cut no power."""
    with in_memory() as directory:
        yield directory


# In a default run, the spaces of these tests lie in memory; with --long they lie on the disk.
IN_MEMORY = tuple(
    f"tests/{directory}/"
    for directory in (
        "admin", "aio", "beside", "claims", "coordination", "corruption", "decisions", "environment", "examples",
        "exports", "faults", "features", "format", "forwarder", "index", "intake", "kills", "log", "maintenance",
        "model", "pipelines", "policies", "recovery", "scripts", "spool", "store", "torture", "tracing", "transactions",
        "watch", "workers", "xa", "celery",
    )
)  # fmt: skip


@pytest.fixture(scope="session")
def _memory() -> Iterator[Path]:
    with in_memory() as directory:
        yield directory


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of a test: in memory where that is faster, and otherwise that of pytest."""
    if request.config.getoption("--long") or not request.node.nodeid.startswith(IN_MEMORY):
        yield request.getfixturevalue("tmp_path")
        return
    directory = Path(tempfile.mkdtemp(dir=request.getfixturevalue("_memory")))
    yield directory
    if not _is_open(directory):  # otherwise the housekeeper of that space would log errors during later tests
        shutil.rmtree(directory, ignore_errors=True)


def _is_open(directory: Path) -> bool:
    """Return whether this process has a file below the directory open."""
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if os.readlink(handle).startswith(f"{directory}/"):
                return True
    return False


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of files."""
    read: list[int] = []
    read_at = Disk.read_at

    def counting(disk: Disk, handle: int, offset: int, length: int) -> bytes:
        data = read_at(disk, handle, offset, length)
        read.append(len(data))
        return data

    monkeypatch.setattr(Disk, "read_at", counting)
    return read


@pytest.fixture
def codecs_of_its_own() -> Iterator[None]:
    """Remove the codecs that a test registers."""
    before = dict(codecs.CODECS)
    yield
    codecs.CODECS.clear()
    codecs.CODECS.update(before)
    codecs._TYPES.clear()


# -- processes that have one simulated space open; callers behind a held flush (a module may make its own space) -------


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def space(processes: Processes) -> spool.Space:
    return processes.space()


@pytest.fixture
def other(processes: Processes, space: spool.Space) -> spool.Space:
    return processes.space()


@pytest.fixture
def watched(processes: Processes, space: spool.Space) -> Watched:
    """A process to which things happen."""
    return processes.open()


@pytest.fixture
def gathering(tmp_path: Path) -> Iterator[Gathering]:
    found = Gathering(tmp_path / "space")
    with door.noticing_joins(lambda: found.came(threading.current_thread()).set()):
        for queue in ("orders", "replies"):
            found.space.create_queue(queue)
        yield found
        found.disk.go_on.set()
        found.space.close()
