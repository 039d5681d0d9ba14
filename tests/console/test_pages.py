"""The pages without a browser: their limits, their cost, downloads, searches, and published metrics."""

import html
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spool
import xa
from spool.admin import listing
from spool.admin.findings import Finding, Kind
from spool.model.text import printable
from spool.watch.body_text import body_view, piece
from tests.at_once import AT_ONCE
from tests.branches import voting
from tests.console import sample
from tests.console.conftest import Served, failed_id, serving
from tests.strides import Stride
from xaspool_console import formatting, troubles
from xaspool_console.quarantine_pages import name_of, token_of
from xaspool_console.samples import Samples

QUEUES = 1_000


@contextmanager
def wide(path: Path) -> Iterator[spool.Space]:
    """Open a space with a thousand queues."""
    spool.create(path, defaults=AT_ONCE).close()
    with open(path / "space.toml", "a") as settings:
        settings.write("".join(f"[queues.queue-{number:03}]\n" for number in range(QUEUES)))
        settings.write('[queues.errors]\n[queues.orders]\nerror_queue = "errors"\n')
    with spool.open(path) as space:
        space.engine.deliver_stored_bytes()
        yield space


@pytest.fixture
def space(memory: Path) -> Iterator[spool.Space]:
    """A space with a queue, open as the console opens a space."""
    with spool.create(memory / "space") as space:
        space.engine.deliver_stored_bytes()
        space.create_queue("orders")
        yield space


@pytest.fixture
def read_bodies(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The positions of all messages that the console reads."""
    found: list[object] = []
    peek = listing.peek

    def counting(store: Any, position: Any, preview: int | None) -> Any:
        found.append(position)
        return peek(store, position, preview)

    monkeypatch.setattr(listing, "peek", counting)
    return found


def test_the_overview_of_a_thousand_queues_reads_no_body_and_asks_once(
    memory: Path, read_bodies: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    with wide(memory / "space") as space:
        for queue in ("queue-000", "queue-500", "queue-999", "errors"):
            space.put_many(queue, [b"x" * 100] * 2_000)
        metrics = space.metrics

        def counting() -> Any:
            asked.append("metrics")
            return metrics()

        for name in ("entries", "entry", "show", "browse", "stats", "queues", "holders", "quarantined_file"):
            monkeypatch.setattr(type(space), name, lambda *_, name=name, **__: asked.append(name))
        with serving(space, metrics=counting) as served, served.client() as client:
            served.console.samples._clock = lambda: 5.0
            urls = ["/", "/?page=2", "/?page=11", "/?q=queue-99", "/?sort=depth", "/flow", "/transactions", "/activity"]
            texts = [client.get(url).text for url in [*urls, "/recovery"]]
    assert asked == ["metrics"]
    assert read_bodies == []
    assert [text.count('<svg class="spark"') for text in texts[:5]] == [100, 100, 2, 10, 100]
    assert texts[0].index(">errors</a>") < texts[0].index(">orders</a>") < texts[0].index(">queue-000</a>")
    assert "1 to 100 of 1,002" in texts[0]
    assert "Error queue errors has 2,000 failed messages." in texts[0]


def test_a_list_reads_only_the_messages_that_it_shows(space: spool.Space, read_bodies: list[object]) -> None:
    space.put_many("orders", [b"x"] * 3_000)
    with serving(space) as served, served.client() as client:
        text = client.get("/queues/orders").text
        assert text.count('<a class="row"') == 25
        assert "?after=25" in text
        assert len(read_bodies) <= 26
        read_bodies.clear()
        assert client.get("/queues/orders", headers={"X-Fragment": "1"}).status_code == 200
        assert read_bodies == []
        text = client.get("/queues/orders?after=999999").text
        assert "The console lists the first 1,000 messages" in text
        assert len(read_bodies) <= 1_026


def test_a_list_and_a_page_read_only_the_beginning_of_a_large_body(space: spool.Space, read_bytes: list[int]) -> None:
    id, *_ = space.put_many("orders", [b"x" * 4_000_000] * 3)
    with serving(space) as served, served.client() as client:
        read_bytes.clear()
        text = client.get("/queues/orders").text
        assert text.count('<a class="row"') == 3
        assert text.count(">4.0 MB<") == 3
        assert "text, 4.0 MB; this is the first 65,536 characters of the body" in client.get(f"/messages/{id}").text
        assert sum(read_bytes) < 700_000
        assert len(client.get(f"/messages/{id}/body").content) == 4_000_000


def test_messages_are_searched_by_id_correlation_header_and_age(reading: Served) -> None:
    id = failed_id(reading.space)
    found = {
        f"id={id}": 1, f"id={id.upper()}": 1, "correlation_id=order-1207": 1, "correlation_id=other": 0,
        "header=shop%3Dharbour": 1, "header=shop%3Dother": 0, "older_than=0": 1, "older_than=86400": 0,
        f"id={'0' * 32}": 0, f"id={id}&id={'0' * 32}": 1, f"id={'0' * 32}%20{id}": 1, "since=2020-01-31T08:00": 1,
        "since=2090-01-31T08:00": 0, "until=2020-01-31T08:00": 0, "reason=nothing": 0,
    }  # fmt: skip
    wrong = {"id=1": "32 hexadecimal digits", "header=shop": "NAME=VALUE", "since=soon": "2030-01-31T08:00, not soon"}
    wrong |= {f"older_than={text}": f"“older than (seconds)” is a number of seconds from 0, e.g. 3600, not {text}"
              for text in ("x", "-1", "nan")}  # fmt: skip
    with reading.client() as client:
        for query, count in found.items():
            text = client.get(f"/queues/errors?{query}").text
            assert text.count('<a class="row"') == count, query
        for query, words in wrong.items():
            answer = client.get(f"/queues/errors?{query}")
            assert (answer.status_code, words in answer.text) == (200, True), query
        assert "No message of the queue matches the search." in client.get("/queues/errors?correlation_id=x").text
        assert "The id of a message has 32 hexadecimal digits" in client.get(f"/?q={id[:8]}").text
        assert "The id of a message" not in client.get("/?q=nowhere").text


def test_x17_the_console_returns_and_deletes_the_failed_messages_of_a_search(changing: Served) -> None:
    space = changing.space
    space.purge("errors")
    outage = [sample.fail(space, "labels", "tea", reason="HTTP 503 <busy>") for _ in range(2)]
    soups = [sample.fail(space, "labels", "soup", reason="five soups") for _ in range(3)]
    query = "?reason=HTTP+503"
    with changing.logged_in() as (client, csrf):
        text = client.get(f"/queues/errors{query}").text
        assert text.count('<a class="row"') == 2
        assert text.count('<td class="reason" title="RuntimeError: HTTP 503 &lt;busy&gt;') == 2
        assert f'/queues/errors/redrive{query}"' in text
        assert (
            "2 messages of queue errors (reason HTTP 503) can return"
            in client.get(f"/queues/errors/redrive{query}").text
        )
        client.post(f"/queues/errors/redrive{query}", data={"csrf": csrf})
        assert [space.show(id).queue for id in (*outage, *soups)] == ["labels"] * 2 + ["errors"] * 3
        chosen = f"?chosen=1&id={soups[0]}&id={soups[2]}"
        assert "deletes 2 messages of queue errors (2 message ids)" in client.get(f"/queues/errors/purge{chosen}").text
        client.post(f"/queues/errors/purge{chosen}", data={"csrf": csrf})
        assert [message.id for message in space.browse("errors")] == [soups[1]]
        answer = client.post("/queues/errors/purge?chosen=1", data={"csrf": csrf})
        assert (answer.status_code, "No message is chosen" in answer.text) == (400, True)
        assert space.stats("errors").ready == 1


def test_an_error_queue_counts_its_messages_by_reason_and_each_count_leads_to_them(
    changing: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = changing.space
    space.purge("errors")
    long = "HTTP 503 <busy>\nthe service is down for maintenance until tomorrow morning"
    for reason, count in {long: 3, "five soups": 2, "a": 1, "b": 1, "c": 1, "d": 1}.items():
        for _ in range(count):
            sample.fail(space, "labels", "tea", reason=reason)
    with changing.logged_in() as (client, _):
        text = client.get("/queues/errors").text
        line = text.partition("by reason: ")[2].partition("</p>")[0]
        links = dict(re.findall(r'<a href="([^"]*)#messages">(.*?)</a>', line))
        words = [
            "RuntimeError: HTTP 503 &lt;busy&gt; the service is down for maint… (3)",
            "RuntimeError: five soups (2)",
        ]
        assert list(links.values())[:2] == words
        assert line.endswith(", others (1)")
        for address, count in zip(links, (3, 2), strict=False):
            found = client.get(f"/queues/errors{html.unescape(address)}").text
            assert found.count('<a class="row"') == count
            assert f"{words[0]}</a>" in found, "the other reasons remain within reach"
        assert "by reason" not in client.get("/queues/labels").text
        assert "by reason" not in client.get("/queues/errors?correlation_id=x").text
        monkeypatch.setattr("xaspool_console.queue_pages._FURTHEST", 4)
        assert "(1)</a> in the first 4 messages</p>" in client.get("/queues/errors").text


def test_e06_the_console_lets_failed_messages_be_attempted_now(changing: Served) -> None:
    space = changing.space
    space.create_queue("calls", retry_delay=3600.0, retry_delay_max=None)
    space.put("calls", "tea")
    space.work("calls", lambda message: 1 / 0, once=True)
    assert space.stats("calls").ready == 0
    with changing.logged_in() as (client, csrf):
        assert '/queues/calls/resume"' in client.get("/queues/calls").text
        assert "Failed messages of queue calls that wait" in client.get("/queues/calls/resume").text
        client.post("/queues/calls/resume", data={"csrf": csrf})
        assert "1 failed message is ready in queue calls." in client.get("/queues/calls").text
    assert space.stats("calls").ready == 1


def test_a_list_shows_a_msgpack_body_as_bounded_json(space: spool.Space) -> None:
    bodies = [{"order": 7, "items": ["rye \x1b"]}, ["x" * 100] * 50, ["x" * 20_000], [b"\xff"], []]
    for body in bodies:
        space.put("orders", body)
    space.put("orders", b"\xc1\xff", content_type="application/msgpack")
    space.put("orders", b"tea" * 500)
    pieces = [piece(message, 200) for message in space.browse("orders")]
    with serving(space) as served, served.client() as client:
        assert "{&#34;order&#34;: 7," in client.get("/queues/orders").text
    assert pieces[0] == '{"order": 7, "items": ["rye \\u001b"]}'
    assert pieces[1].startswith('["xxx')
    assert pieces[1].endswith(" …")
    assert pieces[2].startswith("bytes 91 da 4e 20")
    assert pieces[3:6] == ["[\"b'\\\\xff'\"]", "[]", "bytes c1 ff"]
    assert pieces[6].endswith("te …")
    assert max(map(len, pieces)) <= 202


def test_an_empty_queue_is_empty(space: spool.Space) -> None:
    with serving(space) as served, served.client() as client:
        assert "<p>The queue is empty.</p>" in client.get("/queues/orders").text
        assert "matches the search" in client.get("/queues/orders?older_than=1").text
        assert "The queue has no more messages." in client.get("/queues/orders?after=25").text


def test_the_page_of_a_redrive_names_the_queue_or_the_reason(changing: Served) -> None:
    failed = failed_id(changing.space)
    own = changing.space.put("errors", "own")
    with changing.logged_in() as (client, csrf):
        assert f'/messages/{failed}/redrive"' in client.get(f"/messages/{failed}").text
        text = client.get(f"/messages/{failed}/redrive").text
        assert f"Message {failed} returns from queue errors to its original queue invoices" in text
        assert "/redrive" not in client.get(f"/messages/{own}").text
        for answer in (
            client.get(f"/messages/{own}/redrive"), client.post(f"/messages/{own}/redrive", data={"csrf": csrf})
        ):  # fmt: skip
            assert answer.status_code == 400
            assert f"message {own} came from no other queue, so the console cannot redrive it" in answer.text


def test_the_page_of_a_decision_names_queues_and_the_gtrid(changing: Served) -> None:
    space = changing.space
    xid = xa.Xid(7, b"transfer <1>", b"")
    with voting(xa.ResourceManager(space), xid):
        space.put_many("tills", ["a", "b"])
        space.get("oven")
    with changing.logged_in() as (client, _):
        text = client.get(f"/transactions/{xid}/commit").text
        assert "The decision adds 2 messages to tills and removes 1 message from oven." in text
        assert f"{xid} “transfer &lt;1&gt;”" in text
        text = client.get(f"/transactions/{xid}/rollback").text
        assert "The decision drops 2 messages for tills and returns 1 message to oven." in text
        text = client.get(f"/transactions/{sample.XID}/commit").text
        assert "adds 1 message to tills and removes no message." in text
        text = client.get("/transactions").text
        assert f'{xid} <span class="small">“transfer &lt;1&gt;”</span>' in text


@pytest.mark.parametrize(
    ("xid", "text"),
    [
        ("7.dHJhbnNmZXIgMQ.", "transfer 1"), (str(xa.Xid(0, "é“".encode(), b"")), "é“"), ("", ""), (None, ""),
        ("nonsense", ""), (str(xa.Xid(0, b"\xff", b"")), ""), (str(xa.Xid(0, b"a\x1b", b"")), ""),
        (str(xa.Xid(0, "a\u202e".encode(), b"")), ""), (str(xa.Xid(0x58500001, b"abc", b"")), ""),
    ],
)  # fmt: skip
def test_a_gtrid_is_shown_if_it_is_text(xid: str | None, text: str) -> None:
    assert formatting.gtrid(xid) == text


def test_sentences_about_quarantine_are_sentences(bakery: spool.Space) -> None:
    def metrics(reasons: list[str]) -> Any:
        kinds = {"damaged": Kind.DAMAGED}
        files = [Finding(kinds.get(each, Kind.QUARANTINED), "quarantine/x", "why", reason=each) for each in reasons]
        return replace(found, quarantine=tuple(files), quarantined=len(files), damaged=reasons.count("damaged"))

    found = bakery.metrics()
    texts = {
        ("refused",): "1 file is in quarantine. It had no acknowledged messages.",
        ("damaged",): "1 file is in quarantine. It had acknowledged messages.",
        ("refused", "foreign"): "2 files are in quarantine. None of them had acknowledged messages.",
        ("damaged", "damaged"): "2 files are in quarantine. All of them had acknowledged messages.",
        ("refused", "damaged"): "2 files are in quarantine. 1 of them had acknowledged messages.",
    }
    for reasons, text in texts.items():
        assert troubles.quarantine_summary(metrics(list(reasons))) == text
    published = replace(metrics(["damaged", "refused"]), quarantine=())
    with serving(bakery, metrics=lambda: published, published=True) as served, served.client() as client:
        text = client.get("/quarantine").text
        assert "1 of them had acknowledged messages. Published metrics do not list the files." in text
        assert "Quarantine is empty" not in text


def test_a_body_is_downloaded_as_bytes_that_no_browser_opens(reading: Served) -> None:
    id = failed_id(reading.space)
    with reading.client() as client:
        answer = client.get(f"/messages/{id}/body")
        assert answer.content == reading.space.show(id).body
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == f'attachment; filename="{id}.bin"'
        assert answer.headers["x-content-type-options"] == "nosniff"
        for wrong in ("0" * 32, "1", "%2e%2e", "x" * 500, f"{id}/"):
            assert client.get(f"/messages/{wrong}").status_code == 404
            assert client.get(f"/messages/{wrong}/body").status_code == 404


def test_a_damaged_message_is_named_and_its_page_answers(space: spool.Space, memory: Path) -> None:
    id = space.put("orders", b"tea with milk")
    (file,) = (memory / "space" / "committed").iterdir()
    data = file.read_bytes()
    file.write_bytes(data.replace(b"tea with milk", b"tea with musk"))
    with serving(space) as served, served.client() as client:
        assert "damaged" in client.get("/queues/orders").text
        assert "check --repair" in client.get(f"/messages/{id}").text
        assert client.get(f"/messages/{id}/body").status_code == 404


def test_published_metrics_have_no_messages_and_no_changes(bakery: spool.Space) -> None:
    id = failed_id(bakery)
    with serving(bakery, published=True) as served, served.client() as client:
        assert client.get("/").status_code == client.get("/flow").status_code == 200
        assert "published metrics" in client.get("/").text
        text = client.get("/queues/errors").text
        assert "The console reads published metrics, which have no messages." in text
        assert id not in text
        for address in (f"/messages/{id}", f"/quarantine/{token_of('x')}"):
            assert "reads published metrics" in client.get(address).text
        assert client.get(f"/messages/{id}/body").status_code == 404
        assert client.get(f"/?q={id}").status_code == 200


def test_an_error_of_the_engine_is_one_sentence(bakery: spool.Space) -> None:
    def metrics() -> Any:
        raise spool.DiskFailure("the disk <b>is</b> full")

    with serving(bakery, metrics=metrics) as served, served.client() as client:
        answer = client.get("/")
        assert (answer.status_code, "the disk &lt;b&gt;is&lt;/b&gt; full" in answer.text) == (503, True)


def test_odd_parameters_break_no_page(reading: Served, stride: Stride) -> None:
    """Each parameter at each page with --long, and at two pages without."""
    with reading.client() as client:
        pages = ("/", "/flow", "/transactions", "/recovery", "/quarantine", "/queues/errors")
        for place, query in enumerate((
            "page=0", "page=-1", "page=99999999999", "page=x", "page=²", "sort=x", "q=%00%ff", "q=" + "x" * 9_000,
        )):  # fmt: skip
            for page in pages[place % stride(3) :: stride(3)]:
                assert client.get(f"{page}?{query}").status_code == 200, (page, query)
        assert client.get("/queues/errors?after=²").status_code == 200
        assert client.get("/queues/" + "x" * 5_000).status_code == 404
        for token in ("!!", "xx", "x", "e_=", "²"):
            answer = client.get(f"/quarantine/{token}")
            assert (answer.status_code, "the console has no such page" in answer.text) == (404, True), token
        assert client.get("/quarantine/" + token_of("../space.toml")).status_code == 400
        assert client.get("/static/..%2fapp.py").status_code == 404


def test_names_of_files_survive_their_way_through_an_address() -> None:
    for name in ("a", "ü/?#&", "\udcff\udc80", "\u202e<b>"):
        assert name_of(token_of(name)) == name
        assert token_of(name).replace("-", "").replace("_", "").isalnum()


# -- samples -----------------------------------------------------------------------------------------------------------


def test_rates_are_differences_of_samples(bakery: spool.Space) -> None:
    now, first = [0.0], bakery.metrics()
    metrics = [first]
    samples = Samples(lambda: metrics[0], lambda: now[0])
    assert samples.snapshot().rates == {}
    for step in range(1, 6):
        now[0] += 10
        oven = first.queues["oven"]
        moved = replace(oven, enqueued=oven.enqueued + 20 * step, dequeued=oven.dequeued + 5 * step)
        metrics[0] = replace(first, at=first.at + 10 * step, queues={**first.queues, "oven": moved})
        assert samples.snapshot().rates["oven"] == (2.0, 0.5, 0.0)
    assert len(samples.snapshot().depths("oven")) == 6
    assert samples.snapshot().rates.get("nowhere") is None
    metrics[0], now[0] = replace(first, at=first.at - 99), now[0] + 10  # the clock of the machine was set back
    assert samples.snapshot().rates == {}


def test_metrics_are_computed_once_a_second_however_many_ask(bakery: spool.Space) -> None:
    now, computed, metrics = [0.0], [], bakery.metrics()
    samples = Samples(lambda: computed.append(1) or metrics, lambda: now[0])  # type: ignore[func-returns-value]
    asking = [threading.Thread(target=samples.snapshot) for _ in range(20)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert len(computed) == 1
    now[0] = 1.0
    samples.snapshot()
    assert len(computed) == 2
    samples.forget()
    samples.snapshot()
    assert len(computed) == 3


def test_samples_are_bounded(bakery: spool.Space) -> None:
    now, metrics = [0.0], bakery.metrics()
    samples = Samples(lambda: replace(metrics, at=now[0]), lambda: now[0])
    for _ in range(1_000):
        now[0] += 5
        snapshot = samples.snapshot()
    assert len(snapshot.samples) == 368
    assert snapshot.chart_seconds == 3_600
    assert snapshot.samples[0].queues["oven"] is snapshot.samples[-2].queues["oven"], "an idle queue costs no memory"


# -- texts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain text", "plain text"), ("Ünïcode 茶", "Ünïcode 茶"),
        ("\x1b[31m", "\\x1b[31m"), ("a\u202eb", "a\\u202eb"),
        ("\udcff", "\\udcff"), ("\u2066\u200f", "\\u2066\\u200f"), ("a\nb", "a\\nb"), ("\x85\u2028", "\\x85\\u2028"),
    ],
)  # fmt: skip
def test_hidden_characters_are_seen(text: str, seen: str) -> None:
    assert printable(text) == seen
    assert formatting.finalized(text) == seen
    assert str(formatting.lines("<" + text)).replace("\n", "\\n") == f"&lt;{seen}"


def test_a_deep_or_long_value_becomes_a_bounded_text(space: spool.Space) -> None:
    bodies = ["[" * 90 + "]" * 90, '{"a":' * 90 + "1" + "}" * 90, "[" + "[]," * 30_000 + "[]]", "[1e999]"]
    for body in bodies:
        space.put("orders", body.encode(), content_type="application/json")
    space.put("orders", {b"raw": b"\xff", 1: float("nan")})
    views = [body_view(message, len(message.body)) for message in space.browse("orders")]
    assert [view.kind for view in views][:4] == ["JSON"] * 4
    assert all(len(view.text) <= 64 << 10 for view in views)
    assert "…" in views[0].text
    assert views[2].note == "the first 65,536 characters of the value"
    assert views[4].kind == "msgpack"
