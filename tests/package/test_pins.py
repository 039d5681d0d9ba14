"""The pins, without asking the package index; scripts/pins asks it."""

import pytest

from tests.package import pins
from tests.package.conftest import ROOT
from tests.package.test_wheel import PROJECT


@pytest.mark.parametrize("python", pins.PYTHONS)
def test_a_python_has_one_pin_of_each_package(python: str) -> None:
    names = [pin.partition("==")[0] for pin in pins.pins(python, "x86_64")]
    assert len(names) == len(set(names))
    assert {"numpy", "pandas", "click", "pytest"} <= set(names)


def test_each_python_that_the_classifiers_name_is_pinned_and_looked_for() -> None:
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert named <= set(pins.PYTHONS)
    bootstrap = (ROOT / "scripts" / "bootstrap").read_text()
    for python in pins.PYTHONS:
        assert f"python{python}" in bootstrap
