"""The stages of a message: hooks, translation, routes, and failures."""

import pytest

import spool
from spool.model import codecs
from tests.pipelines import hooks
from tests.pipelines.conftest import HOOKS, Run, declared
from tests.shown import bodies

DECIDE = f"{HOOKS}:decide"


def put(space: spool.Space, pipeline: object, *texts: str, **options: object) -> list[str]:
    pipeline.create_queues(space)  # type: ignore[attr-defined]
    return [space.put("p", text, **options) for text in texts]  # type: ignore[arg-type]


def test_c01_each_stage_has_a_queue_of_its_own_and_one_that_calls_nothing_has_none(space: spool.Space) -> None:
    one = {"service": f"python:{HOOKS}:one"}
    declared(destinations={"one": one}, routes=[{"name": "r", "to": "one"}]).create_queues(space)
    assert set(space.queues()) == {"p", "p.to.one", "p.errors", "p.failures"}
    hooked = declared(
        inbound=DECIDE, destinations={"one": one | {"outbound": DECIDE}}, routes=[{"name": "r", "to": "one"}]
    )
    hooked.create_queues(space)
    assert set(space.queues()) == {"p", "p.translate", "p.to.one", "p.to.one.deliver", "p.errors", "p.failures"}


def test_c01_c05_a_message_passes_all_stages_in_sequence(run: Run, space: spool.Space, delivered: list) -> None:
    destinations = {
        "one": {"service": f"python:{HOOKS}:one", "outbound": [f"{HOOKS}:lower"]},
        "two": {"service": f"python:{HOOKS}:two"},
    }
    routes = [{"name": "r", "translate": f"{HOOKS}:upper", "to": ["one", "two"]}]
    pipeline = declared(inbound=[DECIDE], routes=routes, destinations=destinations)
    put(space, pipeline, *(f"Message {n}" for n in range(20)))
    put(space, pipeline, "First", priority=90)
    summary = run(pipeline)
    assert [body for where, body in delivered if where == "one"] == ["first", *(f"message {n}" for n in range(20))]
    assert [body for where, body in delivered if where == "two"] == ["FIRST", *(f"MESSAGE {n}" for n in range(20))]
    assert {queue: counts["delivered"] for queue, counts in summary.effects.items()} == {
        "p": 21, "p.translate": 21, "p.to.one": 21, "p.to.one.deliver": 21, "p.to.two": 21,
    }  # fmt: skip


def test_c02_a_hook_continues_changes_splits_drops_or_sends(run: Run, space: spool.Space, delivered: list) -> None:
    pipeline = declared(inbound=DECIDE, routes=[{"name": "r", "to": "two"}], destinations=_stopped("one", "two"))
    put(
        space,
        pipeline,
        "as it is",
        "same",
        "split a b",
        "kill a test message",
        "kill",
        "send one",
        headers={"old": "0"},
    )
    summary = run(pipeline)
    assert bodies(space, "p.to.two") == ["as it is", "same", "a", "b"]
    assert [dict(message.headers) for message in space.browse("p.to.two")][2:] == [
        {"old": "0", "part": "a"}, {"old": "0", "part": "b"},
    ]  # fmt: skip
    assert bodies(space, "p.to.one") == ["sent"]
    assert {(failure.effect, failure.reason) for failure in summary.failures["p"]} == {
        ("delivered", f"{DECIDE} dropped it: a test message"), ("delivered", f"{DECIDE} dropped it"),
    }  # fmt: skip


def test_c02_a_hook_gets_the_message_as_the_previous_hook_changed_it(run: Run, space: spool.Space) -> None:
    pipeline = declared(
        inbound=[DECIDE, f"{HOOKS}:lazily"], routes=[{"name": "r", "to": "two"}], destinations=_stopped("two")
    )
    put(space, pipeline, "a", "split x y")
    run(pipeline)
    assert bodies(space, "p.to.two") == ["a1", "a2", "x1", "x2", "y1", "y2"]


def test_c02_control_fields_travel_and_change(run: Run, space: spool.Space) -> None:
    pipeline = declared(inbound=DECIDE, routes=[{"name": "r", "to": "two"}], destinations=_stopped("two"))
    fields = {"client_id": "me", "application_key": "k", "expires_at": 4e9, "headers": {"old": "0", "kept": "1"}}
    [sent] = put(space, pipeline, "change x", priority=70, **fields)
    raw = space.put("p", b'{"a":  1}', content_type="application/json", correlation_id="chain")
    run(pipeline)
    unchanged, changed = space.browse("p.to.two")
    assert (changed.body, changed.priority, changed.group, changed.user_code) == ({"what": "x"}, 9, "g", 7)
    assert (dict(changed.headers), changed.client_id) == ({"kept": "1", "new": "1"}, "me")
    assert (changed.application_key, changed.expires_at, changed.correlation_id) == ("k", 4e9, sent)
    assert (unchanged.body, unchanged.content_type, unchanged.codec) == (b'{"a":  1}', "application/json", None)
    assert (unchanged.correlation_id, raw != unchanged.id) == ("chain", True)


def test_c02_a_content_type_that_is_taken_away_leaves_that_of_the_body(run: Run, space: spool.Space) -> None:
    """The message gets the content type of a message that was put without one."""
    routes = [{"name": "r", "to": "two"}]
    pipeline = declared(inbound=f"{HOOKS}:untyped", routes=routes, destinations=_stopped("two"))
    put(space, pipeline, b"a", "a", {"a": 1}, content_type="text/csv")
    put(space, pipeline, {"a": 1}, content_type="application/json")
    run(pipeline)
    space.create_queue("without")
    for body in (b"a", "a", {"a": 1}):
        space.put("without", body)
    expected = [(message.body, message.codec, message.content_type) for message in space.browse("without")]
    found = [(message.body, message.codec, message.content_type) for message in space.browse("p.to.two")]
    assert found == [*expected, ({"a": 1}, "json", "application/json")]


def test_c02_a_hook_fails_a_message_for_good_or_for_now(run: Run, space: spool.Space) -> None:
    pipeline = declared(inbound=DECIDE, ordered=False, retries=1)
    ids = put(space, pipeline, "error", "reject", "raise", "wrong", "retry", "send nowhere")
    for _ in range(2):
        run(pipeline)
    assert {message.body: message.failure_reason for message in space.browse("p.errors")} == {
        "error": f"{DECIDE}: it says so",
        "reject": f"{DECIDE}: refused",
        "raise": f"{DECIDE}: LookupError: no such patient",
        "wrong": f"{DECIDE}: TypeError: it returns Continue, Send, Kill or Error, a list of them, or None, not "
        "{'body': 'x'}",
        "send nowhere": f"{DECIDE}: InvalidArgument: there is no destination 'nowhere'; there are one, two",
    }
    waits = space.show(ids[4])
    assert (waits.queue, waits.attempts, waits.failure_reason) == ("p", 1, f"{DECIDE}: later")
    assert space.stats("p.translate").ready == 0


def test_c02_the_reply_of_an_error_goes_to_the_failure_queue_that_the_message_names(run: Run, space: spool.Space):
    space.create_queue("answers")
    put(space, pipeline := declared(inbound=DECIDE), "error", failure_queue="answers", correlation_id="c")
    run(pipeline)
    answer = space.get("answers")
    assert (answer.body, answer.correlation_id) == ({"why": "error"}, "c")


def test_c03_q13_the_results_of_a_message_are_one_commit_and_one_chain(run: Run, space: spool.Space) -> None:
    routes = [{"name": "lazy", "translate": f"{HOOKS}:lazily", "to": ["one", "two"]}, {"name": "plain", "to": "two"}]
    put(space, pipeline := declared(routes=routes, destinations=_stopped("one", "two")), "m", correlation_id="c")
    run(pipeline)
    assert (bodies(space, "p.to.one"), bodies(space, "p.to.two")) == (["m1", "m2"], ["m1", "m2", "m"])
    out = [*space.browse("p.to.one"), *space.browse("p.to.two")]
    assert {message.correlation_id for message in out} == {"c"}
    assert len({message.position.number for message in out}) == 1


def test_c04_routes_take_messages_by_their_headers_or_by_a_function(run: Run, space: spool.Space) -> None:
    routes = [
        {"name": "admissions", "when": {"event": ["A01", "A04"], "site": "north"}, "to": "one"},
        {"name": "short", "when": f"{HOOKS}:is_short", "to": "two"},
    ]
    pipeline = declared(routes=routes, destinations=_stopped("one", "two"))
    put(space, pipeline, "abc", "abcdef", headers={"event": "A04", "site": "north"})
    put(space, pipeline, "a", "nothing for it", headers={"event": "A04"})
    run(pipeline)
    assert (bodies(space, "p.to.one"), bodies(space, "p.to.two")) == (["abc", "abcdef"], ["abc", "a"])
    [stranger] = space.browse("p.errors")
    assert (stranger.body, (stranger.failure_reason or "")[:20]) == ("nothing for it", "no route takes it: a")


def test_c04_a_message_that_no_route_takes_may_be_dropped(run: Run, space: spool.Space) -> None:
    pipeline = declared(routes=[{"name": "r", "when": {"event": "A01"}, "to": "one"}], unrouted="kill")
    put(space, pipeline, "x")
    summary = run(pipeline)
    assert [failure.reason for failure in summary.failures["p"]] == ["no route takes it"]
    assert sum(stats.ready for stats in space.stats().values()) == 0


TWO_ROUTES = [{"name": "strict", "translate": f"{HOOKS}:upper", "to": "one"}, {"name": "plain", "to": "two"}]


def test_c04_a_route_that_fails_fails_the_message(run: Run, space: spool.Space) -> None:
    put(space, pipeline := declared(routes=TWO_ROUTES, destinations=_stopped("one", "two"), retries=0), "bad", "good")
    run(pipeline)
    assert (bodies(space, "p.to.one"), bodies(space, "p.to.two")) == (["GOOD"], ["good"])
    [failed] = space.browse("p.errors")
    assert (failed.body, failed.failure_reason) == ("bad", f"route strict: {HOOKS}:upper: ValueError: bad")


@pytest.mark.parametrize("failure", [ValueError, SystemExit])
def test_c04_or_fails_alone_and_is_redriven_alone(
    run: Run, space: spool.Space, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    monkeypatch.setattr(hooks, "failure", failure)
    routes = [TWO_ROUTES[0] | {"severity": "route"}, TWO_ROUTES[1]]
    pipeline = declared(routes=routes, destinations=_stopped("one", "two"), retries=2)
    put(space, pipeline, "bad", "good", correlation_id="c", expires_at=4e9)
    for _ in range(3):
        assert bodies(space, "p.to.two") == [], "it is tried again, with all routes, before one fails alone"
        summary = run(pipeline)
    reason = f"route strict: {HOOKS}:upper: {failure.__name__}: bad"
    assert (bodies(space, "p.to.one"), bodies(space, "p.to.two")) == (["GOOD"], ["bad", "good"])
    assert ("delivered", f"{reason} (this route alone)") in {one[:2] for one in summary.failures["p"]}
    [failed] = space.browse("p.failures")
    assert (failed.body, failed.failure_reason, failed.correlation_id) == ("bad", reason, "c")
    assert (failed.origin_queue, failed.origin_attempts, failed.expires_at) == ("p", 3, None)
    monkeypatch.setattr(hooks.upper, "__code__", hooks.lower.__code__)  # mended
    assert space.redrive("p.failures") == 1
    run(pipeline)
    assert (bodies(space, "p.to.one"), bodies(space, "p.to.two")) == (["GOOD", "bad"], ["bad", "good"])
    assert [dict(message.headers) for message in space.browse("p.to.one")] == [{}, {}]


@pytest.mark.usefixtures("codecs_of_its_own")
def test_a_body_that_no_codec_here_reads_is_an_attempt(run: Run, space: spool.Space) -> None:
    spool.register_codec("far", spool.Codec("text/x-far", lambda _: b"1", lambda _: 1j), complex)
    put(space, pipeline := declared(inbound=DECIDE), 1j)
    del codecs.CODECS["far"]
    summary = run(pipeline)
    [failure] = summary.failures["p"]
    assert (failure.effect, "'far', which this process lacks" in failure.reason) == ("retried", True)


def _stopped(*names: str) -> dict[str, dict[str, object]]:
    return {name: {"service": f"python:{HOOKS}:{name}", "stopped": True} for name in names}
