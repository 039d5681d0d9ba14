"""Documents as programs: a page is run as a reader would, block after block.

The language of a block, the word after its three backticks, decides its kind:

- ``python``: a program. Its expected output is in comments, ``print(…)  # output``, or in the ``text`` block after it.
- ``sh``: commands, run with ``sh -e``: the first that fails fails the page. A ``text`` block that follows is all that
  they print, on stdout and stderr.
- ``text`` after one of these: its output. ``…`` within a line stands for any characters, a line that is only ``…`` for
  any number of lines.
- A block whose first line is a comment with a file's name and nothing else (``# services.py``) is saved under that
  name, and not run. An ``sh`` block that begins with the program of another language is run where the program is.
- ``toml``, ``ini``, ``json``, ``console`` and other ``text``: for reading. Steps that a test must not take stand here:
  other users, services of the system, endless programs. In ``console``, commands begin with ``$``.

All blocks of a page begin in one directory, which is empty at first; each is a separate process. Programs of the
environment under test are found first. A page that starts Spark is run up to there, and as a whole with ``--long``.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

RUN = ("python", "sh")
READ = ("text", "toml", "ini", "json", "console", "mermaid", "javascript", "go", "php", "bash")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|//|<\?php //) ([\w./-]+\.\w+)\n")
_LANGUAGES = ("node", "go", "php")
_SPARK = re.compile(
    r"^spool-forward (?!--help|--version|.*--no-spark|.*--create-queues)|forwarder\.Forwarder\(|session\.start\(",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    where: str  # README.md:12
    language: str
    text: str
    output: str | None  # of the text block that follows

    @property
    def file(self) -> str | None:
        """The name under which it is to be saved."""
        found = _FILE.match(self.text)
        return found[1] if found else None

    @property
    def starts_spark(self) -> bool:
        return self.file is None and self.language in RUN and bool(_SPARK.search(self.text))


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    found = list(_BLOCK.finditer(text))
    for match, following in pairwise([*found, None]):
        where = f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}"
        output = following[2] if following and following[1] == "text" and match[1] in RUN else None
        yield Block(where, match[1], match[2], output)


def programs(page: Path, spark: bool = False) -> list[Block]:
    """The blocks of a page that are saved and run; with ``spark`` also those after the first that starts Spark."""
    absent = tuple(f"{name} " for name in _LANGUAGES if shutil.which(name) is None)
    some = [
        block for block in blocks(page) if block.file or (block.language in RUN and not block.text.startswith(absent))
    ]
    end = next((place for place, block in enumerate(some) if block.starts_spark and not spark), len(some))
    return some[:end]


def run(block: Block, directory: Path, environment: dict[str, str], *, without: str | None = None) -> None:
    """Run one block in ``directory``; AssertionError if its output is not that of the page.

    without: a queue of other programs; lines that begin with its name are left out.
    """
    if block.file is not None:
        file = directory / block.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text)
        return
    command = {"python": ["python", "-c"], "sh": ["sh", "-e", "-c"]}[block.language]
    found = subprocess.run(
        ["/usr/bin/env", *command, block.text],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if block.language == "sh" else subprocess.PIPE,
        text=True,
        check=False,
    )
    told = f"{block.where}\n{found.stdout}{found.stderr or ''}"
    assert found.returncode == 0, f"exit {found.returncode}: {told}"
    lines = [line for line in found.stdout.splitlines(keepends=True) if line.split(maxsplit=1)[:1] != [without]]
    if block.output is not None:
        assert agrees("".join(lines), block.output), f"printed something else: {told}"
    elif block.language == "python":
        said = re.findall(r"print\(.*\)  # (.*)", block.text)
        assert [line.rstrip("\n") for line in lines] == said, told


def agrees(printed: str, said: str) -> bool:
    """Return whether the output is that of the page, except for ends of lines and ``…``."""
    pattern = "".join(
        "(?:.*\n)*" if line.strip() == "…" else r".*".join(map(re.escape, line.rstrip().split("…"))) + r"[ ]*\n"
        for line in said.splitlines()
    )
    return re.fullmatch(pattern, printed if printed.endswith("\n") or not printed else printed + "\n") is not None
