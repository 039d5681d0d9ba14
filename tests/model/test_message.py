"""A message has every documented field, and can be written as JSON."""

import inspect
import json
import pydoc
from pathlib import Path

import spool
from spool.model.message import FIELDS


def test_every_field_of_a_message_is_told_in_its_help() -> None:
    shown = pydoc.render_doc(spool.Message, renderer=pydoc.plaintext)
    for field in FIELDS:
        told = inspect.getdoc(vars(spool.Message)[field])
        assert told, field
        assert told in shown, field


def test_a_message_as_a_dict_goes_into_json(tmp_path: Path) -> None:
    with spool.create(tmp_path) as space:
        space.create_queue("orders")
        for headers in ({"tenant": "acme"}, None):
            space.put("orders", {"amount": 3}, headers=headers)
            message = space.get("orders")
            fields = json.loads(json.dumps(message.as_dict()))
            assert list(fields) == list(FIELDS)
            assert fields["headers"] == dict(message.headers)
            assert fields["body"] == {"amount": 3}
