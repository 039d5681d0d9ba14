"""A SIGINT inside a step reaches its handler, of any kind, once when the step ends, and no message is lost."""

import asyncio
import dis
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import spool
import xa
from spool.runtime import call_guard
from spool.runtime.call_guard import CallGuard
from tests import door
from tests.children import exit_code_of
from tests.environment.pressed import NEW, WITH_NEW, Instructions, begin, descriptors, expect_whole, opened
from tests.histories.messages import THREE

press = partial(signal.raise_signal, signal.SIGINT)


@pytest.fixture(autouse=True)
def _the_usual_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert call_guard._deferral.depth == 0
    signal.signal(signal.SIGINT, before)


class Counting:
    """A handler that raises nothing."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.calls += 1


def test_a_handler_of_ones_own_is_called_when_the_step_ends() -> None:
    counting, guard = Counting(), CallGuard(lambda: None)
    signal.signal(signal.SIGINT, counting)
    with guard.step, guard:
        press()
        assert counting.calls == 0
    assert counting.calls == 1
    assert signal.getsignal(signal.SIGINT) is counting
    press()
    assert counting.calls == 2


def test_each_signal_reaches_the_handler_and_the_second_one_at_once() -> None:
    counting, guard = Counting(), CallGuard(lambda: None)
    signal.signal(signal.SIGINT, counting)
    with guard:
        press()
        press()
        assert counting.calls == 2
        press()
    assert counting.calls == 3
    assert not guard.closed, "nothing was raised, so nothing is torn"


def test_a_second_one_that_raises_tears_the_step_and_closes_the_space() -> None:
    shut: list[str] = []
    guard = CallGuard(lambda: shut.append("shut"))
    with pytest.raises(KeyboardInterrupt), guard.step, guard:
        press()
        press()
    assert shut == ["shut"]
    with pytest.raises(spool.NotOpen, match="KeyboardInterrupt interrupted a call: open the space again"), guard:
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_the_systems_own_handling_is_left_alone(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    with CallGuard(lambda: None):
        assert signal.getsignal(signal.SIGINT) is handler
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_process_that_dies_by_it_is_recovered(memory: Path) -> None:
    begin(memory / "space")
    code = """if True:
        import signal, sys
        from tests.environment.pressed import opened
        from pathlib import Path
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        space, disk = opened(Path(sys.argv[1]))
        disk.arm(30)
        space.put_many("a", ["new 1", "new 2"])
        space.get_many("a", 5)
    """
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, memory / "space"], cwd=root, check=False, timeout=60)
    assert done.returncode == -signal.SIGINT
    expect_whole(memory / "space", opened(memory / "space")[0], [THREE, WITH_NEW])


def test_a_handler_that_was_set_inside_a_step_stays() -> None:
    counting = Counting()
    with CallGuard(lambda: None):
        signal.signal(signal.SIGINT, counting)
    assert signal.getsignal(signal.SIGINT) is counting


def test_asyncio_cancels_its_task_and_the_put_was_whole(memory: Path) -> None:
    begin(memory / "space")
    space, disk = opened(memory / "space")
    said: list[str] = []

    async def main() -> None:
        disk.arm(10)
        space.put_many("a", NEW)
        said.append("put")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert said == ["put", "cancelled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    expect_whole(memory / "space", space, [WITH_NEW])


def test_a_handler_of_the_event_loop_is_called_once(memory: Path) -> None:
    begin(memory / "space")
    space, disk = opened(memory / "space")

    async def main() -> int:
        calls, called = Counting(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: (calls(2, None), called.set()))
        disk.arm(10)
        space.put_many("a", NEW)
        await called.wait()
        await asyncio.sleep(0)
        return calls.calls

    assert asyncio.run(main()) == 1
    expect_whole(memory / "space", space, [WITH_NEW])


def test_the_main_thread_is_not_kept_from_it_by_a_step_of_another(memory: Path) -> None:
    begin(memory / "space")
    space, disk = opened(memory / "space")
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go_on.wait(60)

    disk.press = hold
    disk.arm(10)
    thread = threading.Thread(target=space.put_many, args=("a", NEW))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(KeyboardInterrupt):
        press()
    go_on.set()
    thread.join()
    expect_whole(memory / "space", space, [WITH_NEW])


def test_a_get_that_waits_is_given_up_and_the_space_goes_on(memory: Path) -> None:
    begin(memory / "space")
    space, disk = opened(memory / "space")
    space.get_many("a", 3)

    def calls_until_it_waits() -> None:
        if disk.calls.count("same_file run/control") > 1:
            disk.every = False
            press()

    disk.press, disk.every, disk.calls = calls_until_it_waits, True, []
    with pytest.raises(KeyboardInterrupt):
        space.get("a", timeout=None)
    assert not door.store(space).closed
    expect_whole(memory / "space", space, [THREE.got("a", 3)])


# -- between any two instructions of the mechanism itself -------------------------------------------------------------

MECHANISM = (call_guard.__file__,)


def _python_would_handle_signals(frame: FrameType) -> bool:
    """Return whether the interpreter looks for signals before this instruction: after calls, and at jumps back."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return (at >= 2 and dis.opname[code[at]] in ("RESUME", "JUMP_BACKWARD")) or _follows_a_call(frame)


def _follows_a_call(frame: FrameType) -> bool:
    instructions = list(dis.get_instructions(frame.f_code))
    at = next(place for place, one in enumerate(instructions) if one.offset == frame.f_lasti)
    return at > 0 and instructions[at - 1].opname.startswith("CALL")


def two_steps(guard: CallGuard) -> None:
    with guard.step, guard:
        pass


def with_one_noted(guard: CallGuard) -> None:
    with guard:
        press()


def given_up(guard: CallGuard) -> None:
    with guard:
        press()
        call_guard.deliver_pending_signals()


def isolated(step: Callable[[CallGuard], None], guard: CallGuard) -> Iterator[None]:
    """Run a step in a generator, which keeps its own record of the exception that is handled.

    An exception at the instruction that ends a handler leaves that handler's exception in the record. Without the
    generator, the reports of all later tests would name it.
    """
    step(guard)
    yield


@pytest.mark.parametrize("step", [two_steps, with_one_noted, given_up])
def test_at_each_instruction_of_entering_and_leaving(
    step: Callable[[CallGuard], None], record_property: Callable[[str, object], None]
) -> None:
    """The signal raises KeyboardInterrupt, no thread remains inside the guard, and the next step defers signals as
    before."""
    usual = sys.gettrace()
    for at in itertools.count(1):
        shut: list[str] = []
        guard = CallGuard(partial(shut.append, "shut"))
        instructions, came = Instructions(at, MECHANISM, lambda _: press()), False
        try:
            sys.settrace(instructions)
            next(isolated(step, guard))
        except KeyboardInterrupt:
            came = True
        finally:
            sys.settrace(usual)
        if instructions.left > 0:
            break
        assert came
        assert not guard._inside
        assert guard.closed == bool(shut)
        counting = Counting()
        with suppress(KeyboardInterrupt), CallGuard(lambda: None):  # (a noted signal may be handled only now)
            assert call_guard._deferral.depth == 1
        assert call_guard._deferral.depth == 0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, counting)
        with CallGuard(lambda: None):
            press()
            assert counting.calls == 0, "what was noted before was handled"
        assert counting.calls == 1
        signal.signal(signal.SIGINT, signal.default_int_handler)
    record_property("interrupts at an instruction of the deferral", at - 1)


def test_x18_a_signal_that_comes_as_a_call_begins_leaves_the_calls_of_its_handler_whole() -> None:
    """At each instruction of the mechanism, a handler makes a call, in which further signals come.

    The signals have different numbers, so some handlers are replaced already, and some are not.
    """
    guard, inside = CallGuard(lambda: None), [0]
    numbers = (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM)
    handled: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        assert not inside[0], "a handler runs in the middle of a call"
        handled.append(number)
        if len(handled) < 4:
            work()

    def work() -> None:
        with guard:
            inside[0] += 1
            for number in numbers:
                signal.raise_signal(number)
            inside[0] -= 1

    def begin(frame: FrameType) -> None:
        if _python_would_handle_signals(frame):
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        for at in itertools.count(1):
            handled.clear()
            raising = Instructions(at, MECHANISM, begin)
            try:
                sys.settrace(raising)
                with guard:
                    sys.settrace(None)
            finally:
                sys.settrace(None)
            assert not guard.closed
            assert call_guard._deferral.depth == 0
            assert {signal.getsignal(number) for number in numbers} == {handle}
            if raising.left > 0:
                break
        assert at > 20
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_fork_inside_a_step_takes_no_deferral_along(memory: Path) -> None:
    begin(memory / "space")
    before = descriptors(collect=True)
    space, _ = opened(memory / "space")

    def look() -> None:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert descriptors() <= before

    with door.store(space).guard:
        assert exit_code_of(look) == 0
        press_was_held = call_guard._deferral.depth == 1
    assert press_was_held
    expect_whole(memory / "space", space, [THREE])


@pytest.mark.parametrize("at", [1, 2])
def test_another_signals_handler_that_raises_ends_the_deferral(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``signal`` first runs the handlers of pending signals, and a handler of SIGTERM may raise SystemExit."""
    steps = itertools.count(1)

    def with_one_pending(number: int, handler: Any) -> Any:
        if next(steps) == at:
            raise SystemExit
        return signal.signal(number, handler)

    monkeypatch.setattr(call_guard, "raw", SimpleNamespace(signal=with_one_pending, getsignal=signal.getsignal))
    with pytest.raises(SystemExit), CallGuard(lambda: None):
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert call_guard._deferral.depth == 0


def test_a_transaction_that_has_ended_runs_no_code_when_it_is_freed(memory: Path) -> None:
    """Otherwise a handler that raises could be called there, and Python would ignore its exception."""
    xid = xa.Xid(7, b"one", b"")
    with spool.create(memory / "space") as space, xa.TransactionManager(memory / "decisions") as manager:
        space.create_queue("a")
        rm = xa.ResourceManager(space)
        begun = space.transaction(), manager.transaction(), rm.branch(xid)
        for transaction in begun:
            with transaction:
                if transaction is begun[1]:
                    begun[1].enlist(space)
                space.put("a", "tea")
        rm.commit(xid, xa.TMONEPHASE)
        ended = list(begun)
        del begun, transaction
        called: list[str] = []
        while ended:
            sys.setprofile(lambda frame, event, _: called.append(f"{event} {frame.f_code.co_qualname}"))
            ended.pop()
            sys.setprofile(None)
        own = sys._getframe().f_code.co_qualname
        assert {name for name in called if name.startswith("call ") and not name.endswith(own)} == set()
