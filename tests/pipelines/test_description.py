"""Each mistake in a description is reported on one line that names its place."""

from pathlib import Path
from typing import Any

import pytest

from forwarder import Pipeline, ServiceError

SERVICE = {"service": "queue:next"}
RIGHT: dict[str, Any] = {"name": "p", "routes": [{"name": "r", "to": "d"}], "destinations": {"d": SERVICE}}

MISTAKES = [
    ({"name": "a b"}, "name: it is the name of a queue, which has 1 to 127 letters, digits"),
    ({"nmae": "p"}, "nmae: there is no option 'nmae'; there are name, source, inbound, routes, destinations,"),
    ({"routes": []}, "routes: give at least one"),
    ({"routes": [{"to": "d"}]}, "routes[0].name: it is missing"),
    ({"routes": [{"name": "r", "to": []}]}, "routes[0].to: it is the name of a destination, or a list"),
    ({"routes": [{"name": "r", "to": "x"}]}, "routes[0].to: there is no destination 'x'; there are d"),
    ({"routes": [{"name": "r", "to": ["d", "d"]}]}, "routes[0].to: 'd' would get each message twice: name it once"),
    ({"routes": [{"name": "r", "to": "d"}] * 2}, "routes[1].name: there is another route 'r': give each its own name"),
    (
        {"routes": [{"name": "r", "to": "d", "when": 1}]},
        "routes[0].when: it is headers with a text or a list of texts for each, e.g. { event = ",
    ),
    (
        {"routes": [{"name": "r", "to": "d", "when": {"event": 1}}]},
        "routes[0].when: it is headers with a text or a list of texts for each, ",
    ),
    (
        {"routes": [{"name": "r", "to": "d", "severity": "high"}]},
        "routes[0].severity: it is one of message, route, not ",
    ),
    ({"inbound": ["hooks"]}, "inbound: it is a function, by its name package.module:function, or a list of"),
    ({"retries": "3"}, "retries: it is a whole number from 0 to 2147483648, not '3'"),
    ({"retries": -1}, "retries: it is a whole number from 0 to 2147483648, not -1"),
    ({"ordered": 1}, "ordered: it is true or false, not 1"),
    ({"timeout": 0}, "timeout: it is a number of seconds above 0, not 0"),
    ({"destinations": {}}, "destinations: give at least one"),
    ({"destinations": {"d": "queue:x"}}, "destinations.d: it is a table, not 'queue:x'"),
    ({"destinations": {"d": {}}}, "destinations.d.service: it is missing"),
    ({"destinations": {"d": {"service": "lab"}}}, "destinations.d.service: 'lab' names no service: it begins with"),
    (
        {"destinations": {"d": SERVICE | {"stoped": True}}},
        "destinations.d.stoped: there is no option 'stoped'; there are",
    ),
    ({"destinations": {"d": {"service": "queue:p"}}}, "destinations.d.service: 'p' is a queue of this pipeline,"),
    ({"destinations": {"d": {"service": "QUEUE:p"}}}, "destinations.d.service: 'p' is a queue of this pipeline,"),
    ({"source": "p.to.d"}, "two of its queues are called 'p.to.d': name the source, or one of them, otherwise"),
    ({"name": "p" * 125}, "it takes 1 to 127 letters, digits"),
]


@pytest.mark.parametrize(("wrong", "said"), MISTAKES, ids=[said.partition(":")[0] for _, said in MISTAKES])
def test_a_mistake_is_one_line_with_its_place(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ServiceError) as caught:
        Pipeline(**RIGHT | wrong)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"pipeline {(RIGHT | wrong)['name']}: ") for line in lines)
    assert [line for line in lines if said in line], lines
    if len(wrong.get("name", "p")) == 1:
        assert len(lines) == 1, lines


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ServiceError) as caught:
        wrong = {"retries": -1, "ordered": "yes", "destinations": {"d": {"service": "queue:x", "threads": 0}}}
        Pipeline(**RIGHT | wrong)
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "destinations.d.threads", "ordered", "retries",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "adt.toml: it is not TOML: Invalid value (at end of document)"),
        ('name = "p"', "adt.toml: routes: it is missing"),
        ("\udcff", "adt.toml: it is not TOML: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_the_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "adt.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ServiceError) as caught:
        Pipeline.load(tmp_path / "adt.toml")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("no_such_module:f", "pipeline p: there is no Python module 'no_such_module'"),
        ("tests.pipelines.hooks:nothing", "pipeline p: 'tests.pipelines.hooks:nothing': the module"),
    ],
)
def test_a_function_that_is_not_there_is_told_before_anything_runs(function: str, said: str) -> None:
    with pytest.raises(ServiceError) as caught:
        Pipeline(**RIGHT | {"inbound": function}).routes()
    assert str(caught.value).startswith(said)


async def _coroutine(message: object) -> None:
    pass


def test_a_function_that_takes_no_message_is_refused() -> None:
    for function, said in ((lambda: None, "give it one parameter"), (_coroutine, "is a coroutine function")):
        with pytest.raises(ServiceError, match=said):
            Pipeline(**RIGHT | {"inbound": function}).routes(by_name=False)
