"""Thousands of queues: each change of the settings costs work for the changed queues, and no change breaks the file."""

import asyncio
import logging
import re
import tomllib
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spool
import spool.aio
import spool.store.edits
from spool.model import settings_file, settings_text
from spool.model.settings import SpaceConfig, queue_config, with_queues
from spool.model.settings_file import parse
from spool.model.settings_text import SettingsParser, edited
from tests import door
from tests.spaces import space_with

space = space_with(defaults={})


def text_of(space: spool.Space) -> str:
    return (Path(space.path) / "space.toml").read_text()


# -- many at once -----------------------------------------------------------------------------------------------------


def test_many_queues_are_made_in_one_edit(space: spool.Space) -> None:
    names = [f"customer.{n}" for n in range(300)]
    with mock.patch("spool.store.edits.new_settings", wraps=spool.store.edits.new_settings) as written:
        made = space.create_queues(names, retries=3, error_queue="errors", create_missing=True)
    assert written.call_count == 1
    assert list(made) == names
    assert space.queues() == made | {"errors": spool.QueueConfig("errors")}
    space.put("customer.7", "x")
    with spool.open(space.path) as other:
        assert other.queues() == space.queues()
        assert other.get("customer.7").body == "x"


def test_each_of_many_queues_may_have_its_own_options(space: spool.Space) -> None:
    made = space.create_queues({"a": {"retries": 1}, "b": {}}, retries=7, error_queue=None)
    assert (made["a"].retries, made["b"].retries) == (1, 7)


def test_many_queues_are_made_all_or_none(space: spool.Space) -> None:
    space.create_queue("b")
    before = text_of(space)
    with pytest.raises(spool.QueueExists, match="'b'"):
        space.create_queues(["a", "b", "c"])
    with pytest.raises(spool.QueueNotFound, match="nowhere"):
        space.create_queues({"a": {}, "c": {"reply_queue": "nowhere"}})
    with pytest.raises(spool.InvalidArgument, match="cannot be a queue's name"):
        space.create_queues(["a", "no name"])
    with pytest.raises(spool.InvalidArgument, match="not one text"):
        space.create_queues("orders")
    assert text_of(space) == before
    assert list(space.create_queues(["a", "b", "c"], exist_ok=True)) == ["a", "b", "c"]
    with pytest.raises(spool.QueueExists, match="retries"):
        space.create_queues(["a"], exist_ok=True, retries=3)


def test_many_queues_are_made_in_asyncio(tmp_path: Path) -> None:
    async def make() -> list[str]:
        async with spool.aio.open(tmp_path / "space") as space:
            return list(await space.create_queues(["a", "b"]))

    spool.create(tmp_path / "space").close()
    assert asyncio.run(make()) == ["a", "b"]


def test_a_warning_of_options_of_many_queues_comes_once(space: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="spool"):
        space.create_queues([f"q{n}" for n in range(50)], retries=3)
    assert len(caplog.records) == 1


# -- the work of one change -------------------------------------------------------------------------------------------


def test_a_change_parses_only_the_changed_queue(space: spool.Space) -> None:
    space.create_queues([f"customer-{n}" for n in range(500)], retries=3)
    with spool.open(space.path) as other:
        other.queues()
        before = other.queues()["customer-100"]
        with (
            mock.patch.object(settings_text, "parse", side_effect=AssertionError("the whole file is parsed")),
            mock.patch.object(settings_file, "edited", side_effect=AssertionError("the whole file is edited")),
            mock.patch.object(settings_text, "queue_config", wraps=queue_config) as checked,
        ):
            for call, names in (
                (lambda: space.create_queue("one-more", retries=5), {"one-more"}),
                (lambda: space.change_queue("customer-7", retries=9), {"customer-7"}),
                (lambda: space.delete_queue("customer-9"), {"customer-9"}),
            ):
                checked.reset_mock()
                call()
                known = other.queues()
                assert known == space.queues()
                assert checked.call_count <= 8, "the work does not grow with the other queues"
                assert all((name in known) is (name != "customer-9") for name in names)
        assert other.queues()["customer-100"] is before, "an unchanged queue keeps its configuration"


def test_an_open_space_of_many_queues_keeps_no_entry_for_a_queue_without_messages(space: spool.Space) -> None:
    space.create_queues([f"customer-{n}" for n in range(500)])
    space.put("customer-3", "x")
    space.stats()
    space.change_queue("customer-4", order="lifo")
    door.expire(space)
    assert space.stats("customer-3").ready == 1
    assert set(door.index(space).messages.queues) == {"customer-3"}


def test_equal_queues_are_checked_once_as_a_space_is_opened(space: spool.Space) -> None:
    space.create_queues([f"customer-{n}" for n in range(200)], retries=3)
    with (
        mock.patch.object(settings_text, "queue_config", wraps=queue_config) as checked,
        spool.open(space.path) as other,
    ):
        assert len(other.queues()) == 200
    assert checked.call_count < 5


# -- the limit of the file --------------------------------------------------------------------------------------------


def test_a_queue_that_would_make_the_settings_unreadable_is_refused(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.create_queue("a")
    before = text_of(space)
    for module in ("spool.store.settings_reader", "spool.model.settings_file"):
        monkeypatch.setattr(f"{module}.MAX_SETTINGS_BYTES", len(before) + 30)
    for call in (
        lambda: space.create_queues([f"customer-{n}" for n in range(5)]),
        lambda: space.change_queue("a", capacity_high="5000 messages", capacity_command="x" * 30),
    ):
        with pytest.raises(spool.InvalidArgument, match="nothing was changed"):
            call()
    assert text_of(space) == before
    assert not (Path(space.path) / "space.toml.tmp").exists()
    assert list(space.queues()) == ["a"]
    space.create_queue("b")
    with spool.open(space.path) as other:
        assert list(other.queues()) == ["a", "b"]


# -- the text ---------------------------------------------------------------------------------------------------------

BY_HAND = """# ours
format = 1
max_body_bytes = 1000  # small

[defaults]
retries = 2

[queues]

# the first one
[queues.a]  # a
retries = 3  # three
order = ["priority", "fifo"]

# about b
[queues."b.c"]
reply_queue = "a"

[queues.d]
"""


@pytest.mark.parametrize(
    "text",
    [
        BY_HAND,
        BY_HAND + '[queues.d.drop_types]\n".csv" = "text/csv"\n',
        BY_HAND + "[queues.e]\ncapacity_high = '''5 messages'''\n",
        BY_HAND.replace("[queues]\n", "[queues]\nz = {retries = 1}\n"),
        BY_HAND.replace("[queues]\n", "queues.z.retries = 1\n").replace("[defaults]\nretries = 2\n", ""),
        BY_HAND.replace("[defaults]\nretries = 2\n", "") + "[defaults]\nretries = 9\n",
        BY_HAND.replace("[queues.d]", "  [ queues . d ]"),
        "format = 1\n",
    ],
)
def test_every_way_to_write_the_settings_is_read_and_edited_alike(tmp_path: Path, text: str) -> None:
    path = tmp_path / "space"
    with spool.create(path) as space:
        pass
    (path / "space.toml").write_text(text)
    expected = parse(text, "")
    with spool.open(path) as space:
        assert space.queues() == expected.queues
        space.create_queue("new", retries=5)
        space.change_queue("new", order="lifo")
        if "a" in expected.queues:
            space.change_queue("a", retries=4)
        if "d" in expected.queues:
            space.delete_queue("d")
        after, found = parse(text_of(space), ""), space.queues()
    assert after.queues == found
    assert found["new"] == queue_config("new", {"retries": 5, "order": "lifo"}, defaults=expected.defaults)
    assert "d" not in found
    for comment in re.findall(r"#.*", text):
        assert comment in text_of(space)
    tomllib.loads(text_of(space))


@pytest.mark.parametrize(
    "wrong", ["[queues.d]\n", "[queues.e\n", "[queues.e]\nretrys = 3\n", "[queues.e]\nretries = -1\n", "nonsense\n"]
)
def test_an_error_in_one_of_many_queues_is_named_as_in_a_short_file(wrong: str) -> None:
    parser = SettingsParser()
    parser.parse(BY_HAND, "space.toml")
    with pytest.raises(spool.InvalidArgument) as whole:
        parse(BY_HAND + wrong, "space.toml")
    with pytest.raises(spool.InvalidArgument) as followed:
        parser.parse(BY_HAND + wrong, "space.toml")
    assert str(followed.value) == str(whole.value)
    assert parser.parse(BY_HAND, "space.toml").queues.keys() == {"a", "b.c", "d"}


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "retries": st.integers(0, 9), "order": st.sampled_from(["fifo", "lifo", "priority"]),
        "max_messages": st.integers(0, 9), "durability": st.sampled_from(["flush", "none"]),
        "error_queue": st.sampled_from(["a", "bb"]), "capacity_command": st.just("echo '\"' # [queues.x]"),
        "capacity_high": st.just("5 messages"), "drop_types": st.just({".csv": "text/csv"}),
    },
)  # fmt: skip
NAMES = st.sampled_from(["a", "bb", "b.c", "x-1", "x-10", "x-100"])
CHANGES = st.lists(st.tuples(NAMES, st.none() | OPTIONS), max_size=12)


@settings(max_examples=40)
@given(CHANGES, st.sampled_from([{}, {"error_queue": "a"}, {"retries": 3, "max_messages": 5}]))
def test_edits_of_the_text_and_a_parser_that_follows_them_agree_with_the_whole_file(
    changes: list[tuple[str, dict[str, object] | None]], defaults: dict[str, object]
) -> None:
    text = settings_file.render_new(SpaceConfig(defaults=defaults))
    parser, known = SettingsParser(), parse(text, "")
    for name, options in changes:
        changed, removed = {}, []
        if options is None:
            removed = [name] if name in known.queues else []
        else:
            options = {key: value for key, value in options.items() if key != "error_queue" or value != name}
            if "capacity_high" not in options:
                options.pop("capacity_command", None)
            changed = {name: queue_config(name, options, defaults=known.defaults)}
        expected = with_queues(known, changed, removed)
        found = edited(text, known, changed, removed)
        assert found is not None
        text = found
        known = parser.parse(text, "")
        assert known == expected == parse(text, "")
        assert (known.may_lose, known.has_limits, known.has_marks) == tuple(
            getattr(parse(text, ""), kind) for kind in ("may_lose", "has_limits", "has_marks")
        )
