"""The transport, with kombu alone: exchanges, deliveries, acknowledgements, names and errors."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError
from kombu.transport import virtual

import spool
from celery_xaspool import channel as channels
from celery_xaspool import transport
from celery_xaspool.names import queue_name
from tests import door
from tests.celery.workers import until
from tests.full import no_room
from tests.spaces import remove_by_hand
from tests.strides import Stride
from tests.users import OWNER, acting_as


@pytest.fixture
def connect(path: Path) -> Iterator[Callable[..., Connection]]:
    opened: list[Connection] = []

    def connection(**options: Any) -> Connection:
        opened.append(Connection(f"xaspool://{path}", transport_options=options))
        return opened[-1]

    yield connection
    for each in opened:
        each.release()


def bodies(connection: Connection, *queues: Queue, no_ack: bool = True) -> list[Any]:
    """Return the bodies that the queues have now."""
    found: list[Any] = []
    with Consumer(connection, queues, callbacks=[lambda body, _: found.append(body)], no_ack=no_ack):
        while True:
            try:
                connection.drain_events(timeout=0.05)
            except TimeoutError:
                return found


def test_a_direct_exchange_delivers_by_the_whole_key(connect: Callable[..., Connection]) -> None:
    reader, writer = connect(), connect()
    exchange = Exchange("parcels", "direct")
    tea, coffee = (Queue(name, exchange, routing_key=name)(reader) for name in ("tea", "coffee"))
    tea.declare()
    coffee.declare()
    Producer(writer).publish("green", exchange=exchange, routing_key="tea")
    Producer(writer).publish("nobody", exchange=exchange, routing_key="milk")
    assert bodies(reader, tea) == ["green"]
    assert bodies(reader, coffee) == []


def test_a_topic_exchange_delivers_by_patterns(connect: Callable[..., Connection]) -> None:
    reader, writer = connect(), connect()
    exchange = Exchange("log", "topic")
    errors, everything = Queue("errors", exchange, routing_key="*.error"), Queue("all", exchange, routing_key="#")
    errors(reader).declare()
    everything(reader).declare()
    producer = Producer(writer, auto_declare=False)
    producer.publish("full", exchange="log", routing_key="disk.error")  # this connection does not know the exchange
    producer.publish("fine", exchange="log", routing_key="disk.info")
    assert bodies(reader, errors) == ["full"]
    assert bodies(reader, everything) == ["full", "fine"]


def test_a_fanout_exchange_delivers_to_all_and_to_a_new_queue_at_once(connect: Callable[..., Connection]) -> None:
    exchange, writer = Exchange("news", "fanout"), connect()
    readers = [connect() for _ in range(3)]
    queues = [Queue(f"reader {n}", exchange, auto_delete=True)(reader) for n, reader in enumerate(readers)]
    for number, queue in enumerate(queues):
        queue.declare()
        Producer(writer).publish(number, exchange=exchange)
    assert [bodies(*pair) for pair in zip(readers, queues, strict=True)] == [[0, 1, 2], [1, 2], [2]]


def test_the_bindings_of_a_transient_queue_die_with_its_owner(connect: Callable[..., Connection], path: Path) -> None:
    code = (
        "import sys, time; from kombu import Connection, Exchange, Queue; "
        "connection = Connection(sys.argv[1]); "
        "Queue('mail@' + sys.argv[2], Exchange('news', 'fanout'), auto_delete=True)(connection).declare(); "
        "print('bound', flush=True); time.sleep(600)"
    )
    writer = connect()
    Producer(writer).publish("the space exists", exchange=Exchange("news", "fanout"))
    owner = subprocess.Popen([sys.executable, "-c", code, f"xaspool://{path}", "a"], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "bound\n"
        bindings = writer.transport.bindings
        assert [binding.queue for binding in bindings.of("news")] == ["mail@a"]
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    until(lambda: bindings.of("news") == [])


def test_the_close_of_a_connection_removes_its_bindings(connect: Callable[..., Connection], path: Path) -> None:
    reader, writer = connect(), connect()
    Queue("mine", Exchange("news", "fanout"), exclusive=True)(reader).declare()
    Producer(writer).publish("hello", exchange=Exchange("news", "fanout"))
    reader.release()
    assert list(spool.shared(path).entries("celery.bindings")) == []


@pytest.mark.parametrize("is_transient", [False, True])
def test_an_unbound_queue_gets_nothing(connect: Callable[..., Connection], path: Path, is_transient: bool) -> None:
    connection = connect()
    exchange = Exchange("parcels", "direct")
    queue = Queue("tea", exchange, routing_key="tea", auto_delete=is_transient)(connection)
    queue.declare()
    queue.unbind_from(Exchange("parcels"), routing_key="tea")
    Producer(connection).publish("green", exchange="parcels", routing_key="tea")
    assert connection.transport.bindings.of("parcels") == []
    assert bodies(connection, queue) == []


def test_thousands_of_waiting_messages_are_delivered_in_order_and_once(
    connect: Callable[..., Connection], path: Path, stride: Stride
) -> None:
    connection, found, count = connect(), list[int](), 10_000 // stride(5)
    producer, queue = Producer(connection), Queue("tea")
    producer.publish(0, routing_key="tea", declare=[queue])
    with spool.shared(path).transaction():
        for number in range(1, count):
            producer.publish(number, routing_key="tea")

    def take(body: int, message: Any) -> None:
        found.append(body)
        message.ack()

    with Consumer(connection, [queue], callbacks=[take], prefetch_count=8):
        while len(found) < count:
            connection.drain_events(timeout=60)
    connection.release()
    assert found == list(range(count))
    stats = spool.shared(path).stats("tea")
    assert (stats.ready, stats.claimed, stats.dequeued) == (0, 0, count)


def test_a_deleted_exchange_delivers_nothing(connect: Callable[..., Connection]) -> None:
    connection = connect()
    queue = Queue("tea", Exchange("parcels", "direct"), routing_key="tea")(connection)
    queue.declare()
    queue.exchange.delete()
    Producer(connect()).publish("green", exchange="parcels", routing_key="tea")
    assert bodies(connection, queue(connection)) == []
    queue.declare()
    Producer(connect()).publish("black", exchange="parcels", routing_key="tea")
    assert bodies(connection, queue(connection)) == ["black"]


def test_a_message_for_no_queue_goes_to_the_deadletter_queue(connect: Callable[..., Connection]) -> None:
    connection = connect(deadletter_queue="lost")
    Exchange("parcels", "direct")(connection).declare()
    with pytest.warns(virtual.UndeliverableWarning):
        Producer(connection).publish("green", exchange="parcels", routing_key="tea")
    assert bodies(connection, Queue("lost")) == ["green"]


def test_a_prefetch_limits_the_unacknowledged_messages(connect: Callable[..., Connection]) -> None:
    connection, held = connect(), list[Any]()
    for number in range(5):
        Producer(connection).publish(number, routing_key="tea", declare=[Queue("tea")])
    with Consumer(connection, [Queue("tea")], on_message=held.append, prefetch_count=2):
        connection.drain_events(timeout=1)
        connection.drain_events(timeout=1)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        held[0].ack()
        connection.drain_events(timeout=1)
    assert [message.payload for message in held] == [0, 1, 2]


def test_a_consumer_that_cancels_itself_leaves_other_messages(connect: Callable[..., Connection], path: Path) -> None:
    connection = connect()
    for number in range(5):
        Producer(connection).publish(number, routing_key="tea", declare=[Queue("tea")])
    consumer = Consumer(connection, [Queue("tea")], no_ack=True, on_message=lambda _: consumer.cancel())
    consumer.consume()
    assert consumer.channel.deliver(3) == 1
    until(lambda: spool.shared(path).stats("tea").dequeued == 1)
    stats = spool.shared(path).stats("tea")
    assert (stats.ready, stats.claimed) == (4, 0)


def test_a_worker_gets_a_command_before_a_task_that_was_sent_after_it(connect: Callable[..., Connection]) -> None:
    """Otherwise a revocation that was sent before its task comes too late."""
    worker, loop, got = connect(), Hub(), list[str]()
    queues = [Queue("tasks"), Queue("commands", auto_delete=True)]
    with ExitStack() as stack:
        for queue in queues:  # in the order in which a worker opens its channels
            consumer = Consumer(worker.channel(), [queue], callbacks=[lambda body, _: got.append(body)], no_ack=True)
            stack.enter_context(consumer)
        for body, queue in (("command", queues[1]), ("task", queues[0])):
            Producer(connect()).publish(body, routing_key=queue.name, declare=[queue])
        worker.transport.register_with_event_loop(worker.connection, loop)
        loop.run_once()
    assert got == ["command", "task"]


@pytest.mark.parametrize(
    "error", [spool.DiskFailure("no space left"), spool.UnknownCodec("no codec"), spool.SystemFailure("a lock")]
)
def test_a_worker_that_can_take_nothing_lives_and_takes_the_messages_later(
    connect: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """E.g. on a full disk. The loop of a worker ends with each exception that leaves a callback."""
    worker, loop, got, take, failures = connect(), Hub(), list[str](), spool.Claims.take, iter(range(3))

    def fails_at_first(*args: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise error
        return take(*args, **options)

    monkeypatch.setattr(transport, "_AGAIN_SECONDS", 0.01)
    with Consumer(worker.channel(), [Queue("tea")], callbacks=[lambda body, _: got.append(body)], no_ack=True):
        worker.transport.register_with_event_loop(worker.connection, loop)
        monkeypatch.setattr(spool.Claims, "take", fails_at_first)
        Producer(connect()).publish("green", routing_key="tea")
        until(lambda: loop.run_once() or got)
    assert got == ["green"]
    assert caplog.text.count("no message can be taken") == 1


def test_a_space_that_has_stopped_is_a_lost_connection_of_a_worker(
    connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, loop = connect(), Hub()

    def stopped(*args: Any, **options: Any) -> None:
        raise spool.SpaceStopped("the directory was replaced")

    with Consumer(worker.channel(), [Queue("tea")], callbacks=[print], no_ack=True):
        worker.transport.register_with_event_loop(worker.connection, loop)
        monkeypatch.setattr(spool.Claims, "take", stopped)
        Producer(connect()).publish("green", routing_key="tea")
        with pytest.raises(worker.connection_errors):
            until(loop.run_once)


def test_unacknowledged_messages_return_when_the_channel_closes(connect: Callable[..., Connection]) -> None:
    connection = connect()
    Producer(connection).publish("green", routing_key="tea", declare=[Queue("tea")])
    for _ in range(2):
        with connection.channel() as channel:
            message = channel.basic_get("tea")
            assert message.payload == "green"
            assert not message.delivery_info["redelivered"]
            assert channel.basic_get("tea") is None


def test_acknowledged_messages_are_removed(connect: Callable[..., Connection], path: Path) -> None:
    connection = connect()
    for number in range(3):
        Producer(connection).publish(number, routing_key="tea", declare=[Queue("tea")])
    with connection.channel() as channel:
        channel.basic_get("tea").ack()
        channel.basic_get("tea", no_ack=True)
    assert [message.body for message in spool.shared(path).browse("tea")] != []
    stats = spool.shared(path).stats("tea")
    assert (stats.ready, stats.claimed, stats.dequeued) == (1, 0, 2)


def test_a_returned_message_is_delivered_again_and_counted(connect: Callable[..., Connection], path: Path) -> None:
    connection = connect(queue={"retries": 1, "error_queue": "failed"})
    Producer(connection).publish("green", routing_key="tea", declare=[Queue("tea")])
    with connection.channel() as channel:
        channel.basic_get("tea").requeue()
        until(lambda: spool.shared(path).stats("tea").ready)
        message = channel.basic_get("tea")
        assert message.delivery_info["redelivered"]
        message.requeue()
        until(lambda: spool.shared(path).stats("failed").ready)
        assert channel.basic_get("tea") is None


def test_a_channel_gets_the_message_that_it_has_returned_at_once(connect: Callable[..., Connection]) -> None:
    with connect() as connection, connection.SimpleQueue("tea") as queue:
        queue.put("green")
        for _ in range(20):
            queue.get(timeout=60).requeue()
            queue.queue.get().requeue()


def test_a_rejected_message_moves_to_the_error_queue(connect: Callable[..., Connection], path: Path) -> None:
    connection = connect(queue={"error_queue": "failed"})
    Producer(connection).publish("green", routing_key="tea", declare=[Queue("tea")])
    with connection.channel() as channel:
        channel.basic_get("tea").reject()
    [failed] = spool.shared(path).browse("failed")
    assert failed.failure_reason == "the consumer rejected the message"


def test_a_rejected_message_remains_if_its_error_queue_is_missing(connect: Callable[..., Connection], path: Path):
    connection = connect(queue={"error_queue": "failed"})
    Producer(connection).publish("green", routing_key="tea", declare=[Queue("tea")])
    with connection.channel() as channel:
        message = channel.basic_get("tea")
        remove_by_hand(spool.shared(path), "failed")
        message.reject()
    assert (spool.shared(path).stats("tea").delayed, spool.shared(path).stats("tea").failed) == (1, 0)


@pytest.mark.parametrize(
    ("options", "place"),
    [({}, "tea"), ({"retries": 0}, "tea"), ({"retries": 0, "error_queue": "failed"}, "failed")],
    ids=["unlimited", "no retries", "error queue"],
)
def test_a_message_of_another_framework_delays_no_other_and_is_never_dropped(
    connect: Callable[..., Connection], path: Path, caplog: pytest.LogCaptureFixture, options: Any, place: str
) -> None:
    connection, tea = connect(queue=options), Queue("tea")
    Producer(connection).publish("green", routing_key="tea", declare=[tea])
    space = spool.shared(path)
    foreign = [space.put("tea", body) for body in (b'{"queue_name": "tea", "args": []}', {"task": "shop.add"}, b"\xff")]
    Producer(connection).publish("black", routing_key="tea")
    assert bodies(connection, tea(connection)) == ["green", "black"]
    connection.release()
    assert [message.id for message in space.browse(place)] == foreign
    assert "another framework uses the queue tea: give each framework separate queues" in caplog.text


def test_a_message_of_a_killed_consumer_counts_as_redelivered(connect: Callable[..., Connection], path: Path) -> None:
    code = (
        "import os, sys, celery_xaspool.register; from kombu import Connection; "
        "assert Connection(sys.argv[1]).default_channel.basic_get('tea'); os.kill(os.getpid(), 9)"
    )
    connection = connect()
    Producer(connection).publish("green", routing_key="tea", declare=[Queue("tea")])
    assert subprocess.run([sys.executable, "-c", code, f"xaspool://{path}"], check=False).returncode == -signal.SIGKILL
    message = connection.default_channel.basic_get("tea")
    assert message.payload == "green"
    assert message.delivery_info["redelivered"]


def test_an_ack_that_fails_is_repeated_and_its_message_is_not_delivered_again(
    connect: Callable[..., Connection], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, held = connect(), list[Any]()
    monkeypatch.setattr(channels, "_AGAIN_SECONDS", 0.1)
    Producer(connection).publish("green", routing_key="tea", declare=[Queue("tea")])
    with Consumer(connection, [Queue("tea")], on_message=held.append):
        connection.drain_events(timeout=1)
        with door.failing_attempts(no_room):
            held[0].ack()
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.3)
            assert spool.shared(path).stats("tea").claimed == 1
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        assert (len(held), spool.shared(path).stats("tea").dequeued) == (1, 1)


@pytest.mark.parametrize("fill", [no_room, "max_messages"])
def test_a_publication_without_room_raises_the_error_of_kombu_with_the_advice(
    connect: Callable[..., Connection], path: Path, fill: Any
) -> None:
    connection = connect(queue={"max_messages": 1} if fill == "max_messages" else {})
    producer = Producer(connection)
    producer.publish("green", routing_key="tea", declare=[Queue("tea")])
    with door.failing_attempts(no_room) if fill is no_room else nullcontext():
        for retry in (False, True):
            with pytest.raises(OperationalError, match=r"free space on the disk|queue tea"):
                producer.publish("black", routing_key="tea", retry=retry)
    assert spool.shared(path).stats("tea").ready == 1


def test_a_publication_of_unknown_outcome_is_not_repeated(
    connect: Callable[..., Connection], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, put = Producer(connect()), spool.Space.put

    def unknown(*args: Any, **options: Any) -> None:
        put(*args, **options)
        raise spool.CommitUnknown("the power flickers")

    producer.publish("green", routing_key="tea", declare=[Queue("tea")])
    monkeypatch.setattr(spool.Space, "put", unknown)
    with pytest.raises(spool.CommitUnknown):
        producer.publish("black", routing_key="tea", retry=True)
    assert spool.shared(path).stats("tea").ready == 2


@pytest.mark.parametrize("is_transient", [False, True])
def test_a_queue_with_priorities_delivers_highest_first(connect: Callable[..., Connection], is_transient: bool) -> None:
    connection = connect()
    queue = Queue("tea", max_priority=10, auto_delete=is_transient)
    for number, priority in enumerate([0, 9, 5, 9]):
        Producer(connection).publish(number, routing_key="tea", declare=[queue], priority=priority)
    assert bodies(connection, queue) == [1, 3, 2, 0]


def test_a_connection_forgets_the_oldest_transient_queues_of_others(
    connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that runs for months sees a reply queue for each command, and answers to all of them."""
    monkeypatch.setattr(transport, "_TRANSIENT_QUEUES", 1)
    worker, news = connect(), Exchange("news", "direct")
    for number in range(3):
        client = connect()
        queue = Queue(f"reply {number}", news, routing_key=f"{number}", auto_delete=True)
        queue(client).declare()
        Producer(worker).publish(number, exchange=news, routing_key=f"{number}")
        assert bodies(client, queue) == [number]
    assert len(worker.default_channel.connection.transient) == 1


def test_a_message_expires(connect: Callable[..., Connection], path: Path) -> None:
    connection = connect()
    Producer(connection).publish("green", routing_key="tea", declare=[Queue("tea")], expiration=0.01)
    until(lambda: spool.shared(path).stats("tea").expired == 1)
    short = Queue("coffee", Exchange("parcels", "direct"), routing_key="coffee", message_ttl=0.01)
    Producer(connection).publish("black", exchange="parcels", routing_key="coffee", declare=[short])
    until(lambda: spool.shared(path).stats("coffee").expired == 1)


def test_queues_with_any_names(connect: Callable[..., Connection], path: Path) -> None:
    connection = connect()
    names = ["mail@host", "mail host", "mail/host", ".hidden", "é" * 200, "celery.results", "plain-name_1.x"]
    for name in names:
        Producer(connection).publish(name, routing_key=name, declare=[Queue(name)])
    assert [bodies(connection, Queue(name)) for name in names] == [[name] for name in names]
    assert queue_name("plain-name_1.x") == "plain-name_1.x"
    assert len({queue_name(name) for name in names}) == len(names)
    assert {queue_name(name) for name in names} <= set(spool.shared(path).queues())


def test_size_purge_and_delete(connect: Callable[..., Connection], path: Path) -> None:
    connection = connect()
    for queue in (Queue("tea"), Queue("reply", auto_delete=True)):
        bound = queue(connection)
        for _ in range(3):
            Producer(connection).publish("x", routing_key=queue.name, declare=[queue])
        assert bound.queue_declare().message_count == 3
        assert bound.purge() == 3
        assert bound.queue_declare(passive=True).message_count == 0
        bound.delete()
        with pytest.raises(connection.channel_errors):
            bound.queue_declare(passive=True)
    assert "tea" not in spool.shared(path).queues()


def test_a_durable_queue_that_an_administrator_deleted_is_created_again_with_its_options(
    connect: Callable[..., Connection], path: Path
) -> None:
    """Otherwise a task would lie among the transient messages, where no worker looks for it."""
    declaring, other, space = connect(queue={"retries": 7}), connect(), spool.shared(path)
    queue = Queue("tea", Exchange("parcels"), routing_key="tea")
    found: list[Any] = []
    with Consumer(declaring, [queue], callbacks=[lambda body, message: (found.append(body), message.ack())]):
        for number, (connection, exchange) in enumerate([(declaring, ""), (declaring, "parcels"), (other, "parcels")]):
            space.delete_queue("tea")
            Producer(connection).publish(number, exchange=exchange, routing_key="tea")
            assert (space.stats("tea").ready, space.queues()["tea"].retries) == (1, 7)
            declaring.drain_events(timeout=60)
            until(lambda: space.stats("tea").claimed == 0)
    assert found == [0, 1, 2]
    assert space.stats("celery.transient").enqueued == 0


def test_a_queue_that_nobody_declared_gets_no_message(connect: Callable[..., Connection], path: Path) -> None:
    connection = connect()
    for use in (
        lambda: Producer(connection).publish("green", routing_key="tea"),
        lambda: connection.default_channel.basic_get("tea"),
        lambda: connection.default_channel.queue_purge("tea"),
    ):
        with pytest.raises(connection.channel_errors, match="no program has declared the queue tea"):
            use()
    assert spool.shared(path).stats("celery.transient").enqueued == 0


def test_a_transient_queue_is_known_to_other_connections_while_its_owner_lives(
    connect: Callable[..., Connection], path: Path
) -> None:
    reader, queue = connect(), Queue("reply", auto_delete=True)
    queue(reader).declare()
    Producer(connect()).publish("green", routing_key="reply")
    assert bodies(reader, queue) == ["green"]
    reader.release()
    connection = connect()
    with pytest.raises(connection.channel_errors, match="no program has declared the queue reply"):
        Producer(connection).publish("green", routing_key="reply")


def test_a_queue_whose_messages_another_connection_holds_is_not_deleted(connect: Callable[..., Connection]) -> None:
    """The messages that the deleter holds are deleted with the queue, and their acknowledgements have no effect."""
    ours, theirs, queue = connect(), connect(), Queue("tea")
    for body in "abcd":
        Producer(ours).publish(body, routing_key="tea", declare=[queue])
    with theirs.channel() as channel:
        assert channel.basic_get("tea").payload == "a"
        acked, first, second = (queue(each).get() for each in (ours, ours, ours.channel()))
        acked.ack()
        with pytest.raises(spool.QueueNotEmpty):
            queue(ours).delete()
    queue(ours).delete()
    for message in (first, second):
        message.ack()
    queue(ours).declare()
    assert queue(ours).get() is None


def test_bytes_and_their_types_travel(connect: Callable[..., Connection]) -> None:
    connection, held = connect(), list[Any]()
    Producer(connection).publish(b"\x00\xff", routing_key="tea", declare=[Queue("tea")], content_encoding="binary",
                                 content_type="application/data", compression="zlib")  # fmt: skip
    with Consumer(connection, [Queue("tea")], on_message=held.append, accept=["application/data"]):
        connection.drain_events(timeout=1)
    assert held[0].decode() == b"\x00\xff"


def test_an_operator_s_options_of_a_queue_remain(connect: Callable[..., Connection], path: Path) -> None:
    spool.shared(path).create_queue("tea", retry_delay=7.0)
    Producer(connect()).publish("x", routing_key="tea", declare=[Queue("tea")])
    options = {"xaspool": {"durability": "none"}}
    Producer(connect()).publish("x", routing_key="milk", declare=[Queue("milk", queue_arguments=options)])
    queues = spool.shared(path).queues()
    assert (queues["tea"].retry_delay, queues["milk"].durability) == (7.0, "none")


@pytest.mark.parametrize(
    "url", ["xaspool://", "xaspool:///", "xaspool://host/dir", "xaspool:///dir?x=1", "xaspool://dir"]
)
def test_a_url_without_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(spool.InvalidArgument, match=r"e\.g\. xaspool:///var/spool/shop"):
        Connection(url).connect()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(spool.SpoolError, match="file"):
        Connection(f"xaspool://{tmp_path}/file").connect()


@pytest.mark.root
def test_a_directory_without_rights_is_refused_with_advice(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        Connection(f"xaspool://{tmp_path}/space").connect()  # this user may, and now all modules are imported
        with acting_as(OWNER), pytest.raises(spool.SpoolError, match=r"sudo install -d"):
            Connection(f"xaspool://{place}/space").connect()
