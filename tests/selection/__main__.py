"""Record the calls of tests, and choose tests for each file of the product: ``scripts/test --record-calls``.

Without arguments, all tests of the default run are recorded. With arguments of pytest, the chosen tests are only added
for the files that have none yet.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.selection import choice
from tests.selection.probes import RECORD, ROOT, number_functions


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="xaspool-calls-") as directory:
        record = Path(directory)
        number_functions(record)
        paths = map(str, (ROOT / "tests" / "selection" / "programs", ROOT, ROOT / "scripts"))
        environment = {**os.environ, RECORD: directory, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "pytest", "-p", "tests.selection.recorder", *(arguments or ["-n", "3"])]
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        found = choice.choices(record)
    choice.write(found | choice.read() if arguments else found)
    print(f"{choice.CHOSEN.relative_to(ROOT)} has the tests of {len(found)} files.")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
