"""Any file of messages, also a hostile one, is accepted within the limits or refused with the documented error.

The bytes are valid ones with any value inside changed and all checksums right (a reader that trusts a checksum meets
these), valid ones damaged, and claims that no file could hold.
"""

from itertools import islice, product
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import CorruptedFile, UnknownCodec
from spool.format.header import decode_header
from spool.format.schema import MOST_ADDRESSED
from spool.format.table import decode_table
from spool.model import codecs
from spool.model.layout import MAX_NUMBER
from tests.corruption import hostile
from tests.corruption.readers import OPTIONS, golden_table, little_memory, try_file, try_header, try_table
from tests.strides import Stride

# -- headers ----------------------------------------------------------------------------------------------------------


@OPTIONS
@given(data=st.data(), name=st.sampled_from(sorted(hostile.GOLDEN)), number=st.integers(0, MAX_NUMBER + 1))
def test_e12_a_header_with_any_value_in_it_is_within_the_limits_or_refused(
    data: st.DataObject, name: str, number: int, tried: dict[str, int]
) -> None:
    fields = data.draw(hostile.changed(hostile.header_fields(name)))
    if not isinstance(fields, dict):
        fields = {"time": fields}
    encoded = hostile.header_bytes(number, hostile.packed_fields(fields), min(15, len(fields) + 6))
    try_header(encoded, len(encoded) + data.draw(st.integers(0, 2000)), tried)


@pytest.mark.parametrize("name", sorted(hostile.GOLDEN))
def test_e12_a_header_with_each_value_at_its_edges_is_within_the_limits_or_refused(name: str, tried: dict[str, int]):
    for fields in hostile.each_changed(hostile.header_fields(name)):
        if isinstance(fields, dict):
            encoded = hostile.header_bytes(1, hostile.packed_fields(fields), min(15, len(fields) + 6))
            try_header(encoded, len(encoded) + 2000, tried)


def test_e12_no_field_of_a_header_is_a_bomb(tried: dict[str, int]) -> None:
    fields = hostile.header_fields("commit.msgpack")
    for field, bomb in product(fields, hostile.BOMBS.values()):
        encoded = hostile.header_bytes(
            1, b"".join(hostile.pack(k) + (bomb if k == field else hostile.pack(v)) for k, v in fields.items())
        )
        with pytest.raises(CorruptedFile), little_memory():
            decode_header(encoded, 2**40)
        tried["refused"] += 1


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [0, -1])
def test_e12_runs_that_add_up_with_an_empty_one_among_them_are_refused(empty: int) -> None:
    original, like = golden_table("commit.msgpack")
    table = msgpack.unpackb(original)
    table["runs"][0][2] -= empty
    for place in (0, len(table["runs"])):
        encoded = hostile.pack({**table, "runs": [*table["runs"][:place], [0, 0, empty], *table["runs"][place:]]})
        with pytest.raises(CorruptedFile, match="a run names"):
            decode_table(encoded, hostile.vouched(encoded, like))


@OPTIONS
@given(data=st.data(), name=st.sampled_from(["branch.msgpack", "commit.msgpack", "compaction.msgpack"]))
def test_e12_a_table_with_any_value_in_it_is_within_the_limits_or_refused(
    data: st.DataObject, name: str, tried: dict[str, int]
) -> None:
    original, like = golden_table(name)
    try_table(hostile.pack(data.draw(hostile.changed(msgpack.unpackb(original)))), like, tried)


@pytest.mark.parametrize("name", ["branch.msgpack", "commit.msgpack", "compaction.msgpack"])
def test_e12_a_table_with_each_value_at_its_edges_is_within_the_limits_or_refused(
    name: str, stride: Stride, tried: dict[str, int]
) -> None:
    original, like = golden_table(name)
    for fields in islice(hostile.each_changed(msgpack.unpackb(original)), 0, None, stride(5)):
        try_table(hostile.pack(fields), like, tried)


def test_e12_commands_address_no_more_messages_than_fit_into_memory(tried: dict[str, int]) -> None:
    original, like = golden_table("commit.msgpack")
    fields = {**msgpack.unpackb(original), "commands": [["remove", 1, 0, MOST_ADDRESSED, "dequeued"]] * 2}
    with pytest.raises(CorruptedFile), little_memory():
        decode_table(hostile.pack(fields), hostile.vouched(hostile.pack(fields), like))
    tried["refused"] += 1


def test_e12_no_field_of_a_table_is_a_bomb(tried: dict[str, int]) -> None:
    original, like = golden_table("commit.msgpack")
    fields = msgpack.unpackb(original)
    for field, bomb in product(fields, hostile.BOMBS.values()):
        encoded = b"\x87" + b"".join(
            hostile.pack(k) + (bomb if k == field else hostile.pack(v)) for k, v in fields.items()
        )
        with pytest.raises(CorruptedFile), little_memory():
            decode_table(encoded, hostile.vouched(encoded, like))
        tried["refused"] += 1


# -- whole files ------------------------------------------------------------------------------------------------------


@OPTIONS
@given(data=st.data(), name=st.sampled_from(sorted(hostile.GOLDEN)), salvage=st.booleans())
def test_e12_a_damaged_file_delivers_nothing_that_was_not_put(
    data: st.DataObject, name: str, salvage: bool, tmp_path: Path, tried: dict[str, int]
) -> None:
    try_file(tmp_path, hostile.GOLDEN[name], data.draw(hostile.damaged(hostile.GOLDEN[name])), tried, salvage=salvage)


# -- bodies -----------------------------------------------------------------------------------------------------------


@OPTIONS
@given(
    data=st.binary(max_size=60) | hostile.values.map(hostile.pack) | st.sampled_from([*hostile.BOMBS.values()]),
    codec=st.text(max_size=7),
)
@pytest.mark.parametrize("known", [*codecs.CODECS, None, "other"])
def test_e12_a_body_that_its_codec_did_not_write_is_a_corrupted_file(
    data: bytes, codec: str, known: str | None, tried: dict[str, int]
) -> None:
    name = codec if known == "other" else known
    try:
        with little_memory():
            codecs.decode(data, name)
    except UnknownCodec:
        assert name not in codecs.CODECS
        tried["refused"] += 1
    except CorruptedFile:
        tried["refused"] += 1
    else:
        tried["accepted"] += 1
