"""The package as others get it: built, and installed where the repository is not."""

import importlib.metadata
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import spool
from tests.package.conftest import ROOT, Installation

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("program", sorted(PROJECT["scripts"]))
def test_every_program_of_an_installed_wheel_tells_its_version(
    program: str, installation: Installation, tmp_path: Path
) -> None:
    assert installation.run(program, "--version", cwd=tmp_path) == f"{program} {PROJECT['version']}\n"


def test_the_packages_of_an_installed_wheel_are_its_own(installation: Installation, tmp_path: Path) -> None:
    code = "import spool, xa, recovery, forwarder, xaspool_scripts as s; print(*(m.__file__ for m in (spool, xa, s)))"
    for file in installation.run("python", "-c", code, cwd=tmp_path).split():
        assert file.startswith(str(installation.root))


def test_an_installed_wheel_finds_its_recovery_beside_a_program_s_own(installation: Installation, tmp_path: Path):
    (tmp_path / "recovery.py").write_text("OWNER = 'the program'\n")
    code = "import recovery, spool; print(recovery.OWNER, spool.create('s').check())"
    assert installation.run("python", "-c", code, cwd=tmp_path) == "the program []\n"


def test_the_tour_goes_through_with_an_installed_wheel(installation: Installation, tmp_path: Path) -> None:
    assert "THIS IS A Q EXAMPLE" in installation.run("spool-admin", "tour", cwd=tmp_path)


def test_x01_a_directory_and_an_installed_wheel_are_all_that_several_processes_need(
    installation: Installation, tmp_path: Path
) -> None:
    taking = "import spool; s = spool.open('s'); print(s.get('orders', timeout=60).body)"
    putting = "import spool; s = spool.open('s'); s.put('orders', 'tea')"
    with spool.create(tmp_path / "s") as space:
        space.create_queue("orders")
        taker = subprocess.Popen(
            [installation.root / "bin" / "python", "-c", taking],
            cwd=tmp_path,
            env=installation.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        installation.run("python", "-c", putting, cwd=tmp_path)
        out, _ = taker.communicate(timeout=60)
    assert (taker.returncode, out) == (0, "tea\n")


def test_a_company_finds_licence_authors_and_description(installation: Installation, wheel: Path) -> None:
    (found,) = importlib.metadata.distributions(
        path=[str(next(installation.root.glob("lib/*/site-packages")))], name="xaspool"
    )
    told = found.metadata
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Author"] == "The xaspool authors"
    assert told["Description-Content-Type"] == "text/markdown"
    assert "# xaspool" in str(told.get_payload())
    assert {"spark", "http"} <= set(told.get_all("Provides-Extra") or ())
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("py.typed") for name in names)


def test_an_installed_wheel_has_the_pages(installation: Installation, tmp_path: Path) -> None:
    pages = installation.root / "share" / "doc" / "xaspool"
    assert {path.name for path in (ROOT / "docs").iterdir()} == {path.name for path in (pages / "docs").iterdir()}
    assert (pages / "README.md").exists()
    assert installation.run("spool-admin", "docs", cwd=tmp_path) == (ROOT / "docs" / "README.md").read_text()
    assert installation.run("spool-admin", "docs", "guide", cwd=tmp_path) == (ROOT / "docs" / "guide.md").read_text()
    installation.run("spool-admin", "docs", "nothing", cwd=tmp_path, code=1)


def test_the_source_distribution_has_licence_pages_and_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "README.md", "requirements.txt", "docs/guide.md", "scripts/test"} <= names
    assert "tests/package/test_wheel.py" in names


def test_the_changelog_names_this_version() -> None:
    assert f"## {PROJECT['version']} - " in (ROOT / "CHANGELOG.md").read_text()
