"""The description of the addresses is complete, and the server answers as it says."""

import json
import re
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import one_of

from forwarder.web.app import _OPEN, HANDLERS
from spool.client.fields import ARGUMENTS
from spool.client.problems import _STATUSES
from spool.model.message import PUT_OPTIONS
from tests.web.conftest import Served

DOCUMENT: dict[str, Any] = json.loads(files("forwarder.web").joinpath("openapi.json").read_bytes())
OPERATIONS = {(by.upper(), path): each for path, found in DOCUMENT["paths"].items() for by, each in found.items()}


def test_the_document_has_exactly_the_addresses_of_the_server() -> None:
    known = {(method, path) for method, path, _ in HANDLERS} | {("GET", path) for path in _OPEN}
    assert OPERATIONS.keys() == known


def test_each_operation_is_described_in_sentences_and_has_a_name_of_its_own() -> None:
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names)
    for operation in OPERATIONS.values():
        assert re.fullmatch(r"[A-Z].*[^.]", operation["summary"])
        assert operation["description"].endswith(".")
        described = [*operation["parameters"], *operation["responses"].values()]
        assert all("$ref" in each or each["description"] for each in described)


def test_each_reference_and_each_address_has_its_parameters() -> None:
    for name in re.findall(r'"#/([^"]+)"', json.dumps(DOCUMENT)):
        found: Any = DOCUMENT
        for part in name.split("/"):
            found = found[part]
    for (_, path), operation in OPERATIONS.items():
        given = {each["$ref"].rpartition("/")[2] for each in operation["parameters"] if "$ref" in each}
        assert given == set(re.findall(r"\{(\w+)\}", path))


def test_every_option_of_a_put_has_its_header_and_its_member() -> None:
    headers = {each.get("name") for each in OPERATIONS["POST", "/v1/{space}/queues/{queue}/messages"]["parameters"]}
    assert ARGUMENTS.keys() >= PUT_OPTIONS.keys()
    assert {ARGUMENTS[name] for name in PUT_OPTIONS.keys() - {"headers", "content_type"}} <= headers
    for schema in ("Put", "PutInto"):
        assert DOCUMENT["components"]["schemas"][schema]["properties"].keys() >= PUT_OPTIONS.keys()


def test_every_status_of_an_error_is_described() -> None:
    described = {int(name.removeprefix("Problem")) for name in DOCUMENT["components"]["responses"]}
    assert {*_STATUSES.values()} <= described


def test_the_server_answers_the_document_without_a_token(served: Served) -> None:
    with served.client() as client:
        assert client.get(f"{served.url}/openapi.json").json() == DOCUMENT
        health = client.get(f"{served.url}/healthz")
        assert (health.json()["status"], health.headers["date"][-4:]) == ("ok", " GMT")


@pytest.mark.parametrize("examples", [4, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_the_server_answers_any_call_as_the_document_says(served: Served, examples: int) -> None:
    """schemathesis makes valid and invalid calls from the document, and checks each answer."""
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis import checks
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks as openapi_checks

    schema = schemathesis.openapi.from_dict(DOCUMENT)
    promises = ("status_code", "content_type", "response_headers", "response_schema")
    wanted = [checks.not_a_server_error, *(getattr(openapi_checks, f"{each}_conformance") for each in promises)]
    for result in schema.get_all_operations():
        operation = result.ok()
        if "spark" in operation.path:
            continue

        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=[*HealthCheck])
        @given(case=one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode)))
        def call(case: Any) -> None:
            known = {"space": "shop", "queue": "orders"}
            case.path_parameters.update({name: known[name] for name in known.keys() & case.path_parameters.keys()})
            for name in {"wait", "timeout"} & {*(case.query or {})}:
                case.query[name] = 0
            case.call_and_validate(base_url=served.url, checks=wanted)

        call()
