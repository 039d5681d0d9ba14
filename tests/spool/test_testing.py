"""``spool.testing``: the space that applications test with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import spool
from spool.testing import temporary_space

CONFTEST = 'pytest_plugins = ["spool.testing"]\n'
TESTS = """
def test_one(spool_space):
    spool_space.create_queue("orders")
    spool_space.put("orders", "tea")

def test_each_has_its_own(spool_space):
    assert spool_space.queues() == {}
"""


def test_a_temporary_space_is_fast_and_gone_afterwards() -> None:
    with temporary_space(max_headers=3, defaults={"retries": 2}) as space:
        queue = space.create_queue("orders")
        assert (queue.durability, queue.retry_delay, queue.retries) == ("none", 0.0, 2)
        with pytest.raises(ValueError, match="again"), space.transaction() as tx:
            space.put("orders", "tea", transaction=None)
            tx.get("orders")
            raise ValueError("again")
        assert space.get("orders").attempts == 1
        with spool.create(space.path, exist_ok=True) as application:
            assert application.create_queue("orders", exist_ok=True) == queue
    assert not os.path.exists(space.path)


def test_pytest_finds_the_fixture_where_a_conftest_names_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shop.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_spool_testing_can_be_imported_without_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import spool.testing as t; print(hasattr(t, 'spool_space'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
