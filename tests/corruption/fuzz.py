"""Every reader under a coverage-guided fuzzer (atheris): input that reaches something new is changed further.

The module ``readers`` has the demands on each reader. ``scripts/fuzz`` runs each in a process of its own, since the
fuzzer never returns: it ends that process when the time is over, or when a promise is broken.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from spool.format.header import FIXED_BYTES, MAX_HEADER_BYTES, header_checksum
from tests.corruption import readers
from tests.corruption.hostile import GOLDEN, pack, vouched

_SECONDS_PER_INPUT = 10
_MEMORY_MB = 1024
_INPUT_BYTES = 64 << 10
_DIRECTORY = Path(tempfile.gettempdir()) / f"xaspool-fuzz-{os.getpid()}"

Counts = dict[str, int]


def header(data: bytes, counts: Counts) -> None:
    """With its length and its checksum made right, or hardly anything would be read."""
    if FIXED_BYTES < len(data) <= MAX_HEADER_BYTES:
        data = data[: FIXED_BYTES - 4] + len(data).to_bytes(4, "big") + data[FIXED_BYTES:-4]
        data += header_checksum(data).to_bytes(4, "big")
    readers.try_header(data, len(data) + 2000, counts)


def table(data: bytes, counts: Counts) -> None:
    _, like = readers.golden_table("commit.msgpack")
    readers.try_table(data, vouched(data, like), counts)


def note(data: bytes, counts: Counts) -> None:
    readers.read_note(_DIRECTORY, readers.note_bytes([data[:20], data[20:40], data[40:]]))


def settings(data: bytes, counts: Counts) -> None:
    readers.parse_settings(data.decode("utf-8", "replace"), counts)


def dropped(data: bytes, counts: Counts) -> None:
    readers.try_dropped(data, counts)


def file(data: bytes, counts: Counts) -> None:
    """Give the bytes to the reader unchanged, without corrected checksums."""
    readers.try_file(_DIRECTORY, GOLDEN["commit.msgpack"], data, counts)


def _first_bytes(name: str) -> bytes:
    data = GOLDEN[name]
    return data[: int.from_bytes(data[FIXED_BYTES - 4 : FIXED_BYTES], "big")]


SEEDS: dict[Callable[[bytes, Counts], None], list[bytes]] = {
    header: [_first_bytes(name) for name in sorted(GOLDEN)],
    table: [readers.golden_table(name)[0] for name in ("branch.msgpack", "commit.msgpack")],
    note: [b"".join(map(pack, readers.NOTE))],
    settings: [readers.TOML],
    dropped: [b"".join(map(pack, readers.PUTS))],
    file: [GOLDEN["commit.msgpack"]],
}
READERS = {reader.__name__: reader for reader in SEEDS}


def fuzz(name: str, corpus: str, seconds: int) -> None:
    """Does not return."""
    import atheris

    _DIRECTORY.mkdir()
    counts: Counts = {"accepted": 0, "refused": 0}
    atheris.instrument_all()
    limits = [f"-max_total_time={seconds}", f"-timeout={_SECONDS_PER_INPUT}", f"-rss_limit_mb={_MEMORY_MB}"]
    options = ["-print_final_stats=1", f"-max_len={_INPUT_BYTES}", f"-artifact_prefix={corpus}/broken-"]
    atheris.Setup([name, corpus, *limits, *options], lambda data: READERS[name](bytes(data), counts))
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)}; all if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each reader (default 60)")
    parser.add_argument("--into", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [name for name in options.readers if name not in READERS]:
        parser.error(f"there is no reader {unknown[0]!r}: choose from {', '.join(READERS)}")
    if options.into:
        fuzz(options.readers[0], options.into, options.seconds)
    return max(_in_its_process(name, options.seconds) for name in options.readers or READERS)


def _in_its_process(name: str, seconds: int) -> int:
    corpus = Path(tempfile.mkdtemp(prefix=f"xaspool-fuzz-{name}-"))
    for place, seed in enumerate(SEEDS[READERS[name]]):
        (corpus / f"seed-{place}").write_bytes(seed)
    command = [sys.executable, "-m", "tests.corruption.fuzz", "--into", str(corpus), "--seconds", str(seconds), name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ran:
        told, _ = ran.communicate()
    shutil.rmtree(_DIRECTORY.with_name(f"xaspool-fuzz-{ran.pid}"), ignore_errors=True)
    units = re.search(r"stat::number_of_executed_units: *(\d+)", told)
    tried = f"{int(units[1]):,} inputs" if units else "an unknown number of inputs"
    if ran.returncode == 0:
        shutil.rmtree(corpus)
        print(f"{name}: {tried}, no promise broken", flush=True)
        return 0
    why = re.search(r"(?s)(=== Uncaught|ALARM|out-of-memory).*?(?=\n\n|INFO|$)", told)
    print(f"{why[0] if why else told[-3000:]}\n{name}: broken after {tried}; the input is in {corpus}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
