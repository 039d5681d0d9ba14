"""Knowledge about the engine's calls, by their names in ``scripts/mutate --list``: the test that notices a call that
was left out (``noticed.toml``, kept by ``--record``), and the calls that no test can notice (``unnoticeable.toml``).
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

_HERE = Path(__file__).parent
_HEAD = """\
# Which test noticed that a call was left out: what pytest is told, by the call's name in scripts/mutate --list.
# Kept by scripts/mutate --record; an entry whose test does not notice any more is looked for again.
"""


def unnoticeable() -> dict[str, str]:
    """Reasons."""
    found: dict[str, str] = tomllib.loads((_HERE / "unnoticeable.toml").read_text())
    return found


def noticed() -> dict[str, list[str]]:
    """pytest's arguments: a test, and options if it needs any."""
    path = _HERE / "noticed.toml"
    found: dict[str, list[str]] = tomllib.loads(path.read_text()) if path.exists() else {}
    return found


def remember(tests: Mapping[str, list[str]]) -> None:
    """The whole memory, in the order of the names."""
    lines = [f"{_string(name)} = [{', '.join(map(_string, tests[name]))}]\n" for name in sorted(tests)]
    (_HERE / "noticed.toml").write_text(_HEAD + "".join(lines))


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # TOML reads the escapes of JSON
