"""Services by name, and the outcomes of calls of a Python function: every row of the table of outcomes."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forwarder.services import PythonService, Request, Service, ServiceError, named_as, parse
from forwarder.services.python import PythonCaller
from spool.model.message import Message
from spool.model.position import Position
from spool.model.text import LONGEST_REASON
from spool.workers.outcome import Outcome, Passed, Reject, Rejected, Replied, Retried, Retry
from tests.unspeakable import Unspeakable


def request(body: Any = b"hello", **attributes: Any) -> Request:
    raw = body if isinstance(body, bytes) else str(body).encode()
    return Request(Message("0" * 31 + "1", "orders", body, 0.0, Position(1, 0), attributes), raw)


def call(service: Service, message: Request | None = None) -> Outcome:
    caller = service.open()
    try:
        return caller(message or request())
    finally:
        caller.close()


def assert_not_reached(outcome: Outcome, reason: str = "") -> None:
    """Expect a failure that counts no attempt."""
    assert isinstance(outcome, Retried), outcome
    assert not outcome.counted, outcome
    assert reason in outcome.reason


class TestNames:
    @pytest.mark.parametrize(
        "url",
        [
            "python:json:dumps",
            "http://localhost:1/a",
            "https://localhost/a",
            "queue:other",
            "exec:cat -u",
            "file:/tmp",
            "kafka://h:1/t",
        ],
    )
    def test_each_kind_has_its_scheme_and_can_be_sent_to_a_worker(self, url: str) -> None:
        service = parse(url, timeout=7)
        assert pickle.loads(pickle.dumps(service)) == service

    @pytest.mark.parametrize(
        ("services", "url"),
        [
            ("python:shop.services", "python:shop.services:orders"),
            ("python:shop:Desk", "python:shop:Desk.orders"),
            ("http://localhost:8000", "http://localhost:8000/orders"),
            ("http://localhost:8000/v1/", "http://localhost:8000/v1/orders"),
            ("exec:/srv/bin", "exec:/srv/bin/orders"),
            ("kafka://h:1,i:2", "kafka://h:1,i:2/orders"),
        ],
    )
    def test_q12_a_service_may_have_the_name_of_the_queue(self, services: str, url: str) -> None:
        assert named_as("orders", services) == url

    @pytest.mark.parametrize("url", ["ftp://host/", "orders", "", ":", "python", "gopher://x"])
    def test_an_unknown_scheme_is_told_the_known_ones(self, url: str) -> None:
        with pytest.raises(ServiceError, match=r"python:.*http://.*https://.*exec:.*file:.*kafka:.*queue:"):
            parse(url)

    @pytest.mark.parametrize(
        "url",
        ["http:", "http://", "http:///path", "http://host:port/", "http://host:99999/", "http://[::1", "https://a b/"],
    )
    def test_a_malformed_url_is_found_before_any_work(self, url: str) -> None:
        with pytest.raises(ServiceError, match="http://host"):
            parse(url).check()

    def test_a_queue_passes_the_message_on(self) -> None:
        parse("queue:other").check()
        assert call(parse("queue:other")) == Passed("other")
        with pytest.raises(ServiceError, match="queue:name"):
            parse("queue:").check()


class TestPythonFunction:
    @staticmethod
    def call(function: Callable[[Message], Any], message: Request | None = None, **options: Any) -> Outcome:
        return PythonCaller(function, **options)(message or request())

    @pytest.mark.parametrize(
        ("value", "reply"),
        [
            (b"\x00\xff", Replied(b"\x00\xff")),
            ("grüße", Replied("grüße".encode(), "text/plain; charset=utf-8", "text")),
            ({"a": 1}, Replied(b"\x81\xa1a\x01", "application/msgpack", "msgpack")),
            ([1], Replied(b"\x91\x01", "application/msgpack", "msgpack")),
            (None, Replied(b"")),
            (b"", Replied(b"")),
        ],
    )
    def test_a_value_is_the_reply(self, value: object, reply: Replied) -> None:
        assert self.call(lambda message: value) == reply

    def test_a_function_gets_the_whole_message(self) -> None:
        sent = request({"n": 1}, priority=7, headers={"tenant": "acme"})
        seen = []
        self.call(seen.append, sent)
        assert seen == [sent.message]

    def test_retry_is_an_attempt_and_its_delay_is_honoured(self) -> None:
        def service(message: Message) -> None:
            raise Retry("later", delay=60)

        assert self.call(service) == Retried("later", 60.0)

    def test_reject_is_final_and_carries_its_reply(self) -> None:
        def service(message: Message) -> None:
            raise Reject("no such account", reply="try\nelsewhere")

        reply = Replied(b"try\nelsewhere", "text/plain; charset=utf-8", "text")
        assert self.call(service) == Rejected("no such account", reply)

    def test_a_rejection_stands_even_if_its_reply_is_useless(self) -> None:
        def service(message: Message) -> None:
            raise Reject("no", reply=object())

        outcome = self.call(service)
        assert isinstance(outcome, Rejected)
        assert outcome.reply is None
        assert outcome.reason.startswith("no (its reply is lost: InvalidArgument")

    @pytest.mark.parametrize("error", [ValueError("no\nsuch"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
    def test_any_other_exception_is_an_attempt(self, error: BaseException) -> None:
        def service(message: Message) -> None:
            raise error

        outcome = self.call(service)
        assert isinstance(outcome, Retried)
        assert outcome.counted
        assert outcome.reason.startswith(type(error).__name__)
        assert "\n" not in outcome.reason

    @pytest.mark.parametrize("delay", [-1, float("nan"), "soon"])
    def test_a_senseless_delay_is_an_exception_like_any_other(self, delay: Any) -> None:
        def service(message: Message) -> None:
            raise Retry(delay=delay)

        outcome = self.call(service)
        assert isinstance(outcome, Retried)
        assert (outcome.delay, outcome.counted) == (None, True)

    def test_an_exception_that_cannot_be_printed_is_still_an_outcome(self) -> None:
        def service(message: Message) -> None:
            raise Unspeakable

        assert self.call(service) == Retried("Unspeakable")

    def test_a_reason_can_be_stored(self) -> None:
        def service(message: Message) -> None:
            raise Retry("\udcff" + "x" * 5000)

        outcome = self.call(service)
        assert isinstance(outcome, Retried)
        assert len(outcome.reason.encode()) == LONGEST_REASON

    def test_a_value_that_no_codec_can_write_is_an_attempt(self) -> None:
        outcome = self.call(lambda message: object())
        assert isinstance(outcome, Retried)
        assert outcome.counted
        assert "object" in outcome.reason

    def test_a_reply_too_large_for_a_queue_is_final(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("forwarder.services.python.MAX_REPLY", 4)
        assert self.call(lambda message: b"1234") == Replied(b"1234")
        assert isinstance(self.call(lambda message: b"12345"), Rejected)


class TestImport:
    @pytest.fixture(autouse=True)
    def module(self, own_modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "xaspool_demo.py").write_text(
            "from spool.workers.outcome import Retry\n"
            "def shout(message): return message.body.upper()\n"
            "class Desk:\n"
            "    @staticmethod\n"
            "    def later(message): raise Retry('later', 5)\n"
            "async def slow(message): pass\n"
            "def two(message, other): pass\n"
            "number = 3\n"
        )
        (tmp_path / "xaspool_needy.py").write_text("import xaspool_is_not_there\n")
        (tmp_path / "xaspool_script.py").write_text("raise SystemExit('usage: script')\n")
        monkeypatch.chdir(tmp_path)

    def test_a_module_in_the_current_directory_is_found(self) -> None:
        service = parse("python:xaspool_demo:shout")
        service.check()
        assert call(service) == Replied(b"HELLO")

    def test_a_function_may_be_an_attribute_of_a_class(self) -> None:
        assert call(parse("python:xaspool_demo:Desk.later")) == Retried("later", 5.0)

    @pytest.mark.parametrize(
        ("target", "text"),
        [
            ("", "package.module:function"),
            ("xaspool_demo", "package.module:function"),
            ("xaspool_demo:", "package.module:function"),
            ("..:x", "package.module:function"),
            ("xaspool_no.such:f", "there is no Python module 'xaspool_no.such'"),
            ("xaspool_needy:f", "needs 'xaspool_is_not_there'"),
            ("xaspool_script:f", "SystemExit: usage: script"),
            ("xaspool_demo:shuot", "has no 'shuot'"),
            ("xaspool_demo:number", "no function but a int"),
            ("xaspool_demo:slow", "coroutine"),
            ("xaspool_demo:two", "one parameter"),
        ],
    )
    def test_a_target_that_cannot_be_called_is_an_error_of_one_line(self, target: str, text: str) -> None:
        with pytest.raises(ServiceError) as caught:
            PythonService(target).check()
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
