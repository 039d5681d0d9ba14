"""PyPI has other projects named ``spool``, ``xa`` and ``forwarder``: the programs name the project that has overwritten
files of xaspool."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The tests' own environment has an editable xaspool, whose finder would find the missing modules in the repository.
NO_EDITABLE = "import sys\nsys.meta_path[:] = [each for each in sys.meta_path if 'Editable' not in str(each)]\n"
OTHER = b'"""Another project."""\n'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory in which pip has installed xaspool."""
    site = tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("spool", "xa", "recovery", "forwarder", "scripts/xaspool_scripts"):
        shutil.copytree(ROOT / package, site / Path(package).name, ignore=ignored)
    (site / "sitecustomize.py").write_text(NO_EDITABLE)
    files = sorted(path.relative_to(site) for path in site.rglob("*.py"))
    _describe(site, "xaspool", "9.9", files)
    return site


def _describe(site: Path, name: str, version: str, files: list[Path]) -> None:
    """Write the metadata of an installed distribution with these files."""
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    hashes = ((file, hashlib.sha256((site / file).read_bytes()).digest()) for file in files)
    lines = [f"{file},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},1\n" for file, digest in hashes]
    (metadata / "RECORD").write_text("".join(lines))


def _install(site: Path, name: str, *, overwrites: bool = True) -> None:
    """Install another project with this name, as pip does."""
    file = Path(name, "__init__.py" if overwrites else "another.py")
    (site / file).write_bytes(OTHER)
    _describe(site, name, "1.2", [file])


def _run(site: Path, program: str, *words: object) -> tuple[int, str, list[str]]:
    code = f"from xaspool_scripts.start import {program}; {program}()"
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(site)}, cwd=site.parent
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


AGAIN = "pip install --force-reinstall --no-deps ./xaspool, which is the wheel or the repository of xaspool"
REMEDY = f"pip uninstall {{0}}, then {AGAIN}"


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("name", "program", "words"),
    [("spool", "admin", ["queue", "list"]), ("spool", "worker", ["--help"]), ("xa", "admin", ["tour"]),
     ("forwarder", "forward", ["--help"])],
)  # fmt: skip
def test_each_program_names_the_project_that_has_overwritten_its_files(
    site: Path, name: str, program: str, words: list[str]
) -> None:
    _install(site, name)
    sentence = f"{name} 1.2 has overwritten the package {name} of xaspool: {REMEDY.format(name)}"
    assert _run(site, program, *words) == (1, "", [f"spool-{program}: {sentence}"])


def test_files_that_went_with_the_other_project_are_named_with_the_remedy(site: Path) -> None:
    (site / "spool" / "opening.py").unlink()
    sentence = f"files of spool are not those of xaspool: {AGAIN}"
    assert _run(site, "admin", "-s", site.parent / "space", "queue", "list") == (1, "", [f"spool-admin: {sentence}"])


def test_a_project_in_front_of_xaspool_is_named_by_the_first_error(site: Path, tmp_path: Path) -> None:
    front = tmp_path / "front"
    (front / "spool").mkdir(parents=True)
    _install(front, "spool")
    (site / "sitecustomize.py").write_text(f"{NO_EDITABLE}sys.path.insert(0, {str(front)!r})\n")
    sentence = f"spool 1.2 installs the package spool of xaspool: {REMEDY.format('spool')}"
    assert _run(site, "admin", "queue", "list") == (1, "", [f"spool-admin: {sentence}"])


@pytest.mark.slow
def test_doctor_names_a_project_whose_files_lie_beside_ours(site: Path) -> None:
    code, _, lines = _run(site, "admin", "doctor", site.parent)
    assert (code, lines) == (0, ["spool-admin: good enough"])
    _install(site, "xa", overwrites=False)
    code, _, lines = _run(site, "admin", "doctor", site.parent)
    told = f"spool-admin: xa 1.2 installs the package xa of xaspool: {REMEDY.format('xa')}"
    assert (code, lines) == (0, [told, "spool-admin: good enough"])
