"""A wheel, and an environment with the wheel and its declared dependencies alone."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_UNKNOWN_TO_GIT = {".venv", ".git", "build", "dist", "__pycache__"}


@dataclass(frozen=True)
class Installation:
    """A new environment, in which nothing leads to the repository."""

    root: Path
    environment: dict[str, str]

    def run(self, *words: str, cwd: Path, code: int = 0) -> str:
        """A program's stdout; it must end with ``code``."""
        found = subprocess.run(
            words, cwd=cwd, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert found.returncode == code, f"{words}: exit {found.returncode}\n{found.stdout}{found.stderr}"
        return found.stdout


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree: a build leaves its traces there."""
    copy = tmp_path_factory.mktemp("source")
    for directory, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in _UNKNOWN_TO_GIT and not name.endswith((".egg-info", "_cache")) and name != ".hypothesis"
        ]
        inside = copy / Path(directory).relative_to(ROOT)
        inside.mkdir(exist_ok=True)
        for name in files:
            (inside / name).symlink_to(Path(directory) / name)
    return copy


def _build(kind: str, source: Path, into: Path) -> Path:
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    found = subprocess.run(
        [sys.executable, "-c", code, str(into)], cwd=source, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return into / found.stdout.split()[-1]


@pytest.fixture(scope="session")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of the source distribution, which so has all that a build needs."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist, unpacked)
    (source,) = unpacked.iterdir()
    return _build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return _install(wheel, tmp_path_factory.mktemp("installed"), extras={"http"})


@pytest.fixture(scope="session")
def installation_with_spark(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return _install(wheel, tmp_path_factory.mktemp("installed"), extras={"http", "spark"})


def _install(wheel: Path, directory: Path, extras: set[str]) -> Installation:
    """The wheel, installed by pip; its dependencies come from the environment of the tests, without a network."""
    root = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = root / "lib" / version / "site-packages"
    for needed in _needed(wheel, extras):
        for name in {Path(file).parts[0] for file in needed.files or () if ".." not in Path(file).parts}:
            if name != "__pycache__":
                (packages / name).symlink_to(Path(str(needed.locate_file(name))))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(root / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)
    home = directory / "home"
    home.mkdir()
    return Installation(root, {"PATH": f"{root}/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"})


def _needed(wheel: Path, extras: set[str]) -> list[importlib.metadata.Distribution]:
    """The declared dependencies of the wheel, and their dependencies."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    wanted = [Requirement(line.partition(":")[2]) for line in lines if line.startswith("Requires-Dist:")]
    open_ = [one for one in wanted if _applies(one, extras)]
    found: dict[str, importlib.metadata.Distribution] = {}
    while open_:
        requirement = open_.pop()
        if requirement.name not in found:
            found[requirement.name] = importlib.metadata.distribution(requirement.name)
            further = map(Requirement, found[requirement.name].requires or ())
            open_ += [one for one in further if _applies(one, requirement.extras)]
    return list(found.values())


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})
