"""The interface of ``import spool``: its names, its help, its version, and the program of ``python -m spool``."""

import inspect
import pydoc
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from unittest import mock

import pytest

import spool
import spool.aio

ROOT = Path(__file__).parent.parent.parent


def _python(*arguments: str) -> str:
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout


def test_asyncio_is_reachable_by_import_spool_and_loaded_when_it_is_asked_for() -> None:
    told = _python("-c", "import spool, sys; print('asyncio' in sys.modules); print(spool.aio.open.__module__)")
    assert told.split() == ["False", "spool.aio.space"]


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    assert {name for name in dir(spool) if not name.startswith("_")} == set(spool.__all__)
    assert {"aio", "Finding", "RecoveryReport"} <= set(spool.__all__)
    assert "__version__" in dir(spool)
    for name in spool.__all__:
        assert getattr(spool, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'spool' has no attribute 'nothing'"):
        spool.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    assert spool.__version__ == version("xaspool")
    with mock.patch("importlib.metadata.version", side_effect=PackageNotFoundError("xaspool")):
        assert spool.__version__ == "unknown"  # run from a tree that is not installed


def test_python_m_spool_is_spool_admin() -> None:
    assert _python("-m", "spool", "--version") == f"spool-admin {spool.__version__}\n"


def test_a_report_of_recovery_is_of_the_types_that_spool_names(tmp_path: Path) -> None:
    with spool.create(tmp_path) as space:
        (tmp_path / "committed" / "foreign").touch()
        found = space.check()
        assert isinstance(space.recovery, spool.RecoveryReport)
        assert found
        assert all(isinstance(one, spool.Finding) for one in found)
    assert isinstance(spool.Space.recovery, property)
    assert spool.Space.recovery.__doc__


TOLD_OF_A_TRANSACTION = {
    "abandon", "commit", "commit_async", "get", "get_many", "is_active", "put", "put_many", "replace",
    "rollback", "rollback_only", "set_rollback_only", "submit", "xid",
}  # fmt: skip


@pytest.mark.parametrize("transaction", [spool.Transaction, spool.aio.Transaction])
def test_help_on_a_transaction_shows_the_public_methods_and_nothing_of_the_engine(transaction: type) -> None:
    shown = pydoc.render_doc(transaction, renderer=pydoc.plaintext)
    names = set(re.findall(r"^ \|  (?:async )?([a-z]\w*)(?:\(|$)", shown, re.MULTILINE))
    assert names & set(dir(transaction)) >= TOLD_OF_A_TRANSACTION - {"commit_async", "submit"}
    assert {name for name in dir(transaction) if not name.startswith("_")} <= TOLD_OF_A_TRANSACTION
    for name in TOLD_OF_A_TRANSACTION & set(dir(transaction)):
        assert inspect.getdoc(getattr(transaction, name)), name


def test_help_on_the_package_begins_with_its_purpose_and_lists_the_public_names() -> None:
    shown = pydoc.render_doc(spool, renderer=pydoc.plaintext)
    assert shown.index("DESCRIPTION") < shown.index("PACKAGE CONTENTS")
    for name in spool.__all__:
        assert re.search(rf"\b{name}\b", shown), name
    assert re.findall(r"^    class (\w+)", shown, re.MULTILINE) == sorted(
        name for name in spool.__all__ if inspect.isclass(getattr(spool, name))
    )
