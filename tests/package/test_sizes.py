"""A package can be read in a sitting, and a module on a few screens: what grows beyond that is two things."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_MODULES, MAX_PACKAGE_LINES, MAX_MODULE_LINES = 10, 2_500, 500
TOPS = ("spool", "xa", "recovery", "forwarder")
INITS = [init for top in TOPS for init in (ROOT / top).rglob("__init__.py")]
PACKAGES = sorted(init.parent.relative_to(ROOT).as_posix() for init in INITS)


def lines(module: Path) -> int:
    return len(module.read_text().splitlines())


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_at_most_ten_modules_and_2500_lines(package: str) -> None:
    modules = [module for module in (ROOT / package).glob("*.py") if module.stem != "__init__"]
    assert len(modules) <= MAX_MODULES, "find the two things that this package is, and give each its own"
    assert sum(map(lines, modules)) <= MAX_PACKAGE_LINES


def test_a_module_has_at_most_500_lines() -> None:
    roots = (*TOPS, "scripts/xaspool_scripts")
    modules = [module for root in roots for module in (ROOT / root).rglob("*.py")]
    assert len(modules) > 100
    assert {module.as_posix(): lines(module) for module in modules if lines(module) > MAX_MODULE_LINES} == {}
