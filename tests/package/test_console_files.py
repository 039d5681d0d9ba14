"""The web console as others get it: its templates and static files are in the wheel."""

import zipfile
from pathlib import Path

from tests.package.conftest import ROOT, Installation


def test_the_wheel_has_every_template_and_static_file(wheel: Path) -> None:
    source = ROOT / "scripts" / "xaspool_console"
    expected = {
        f"xaspool_console/{path.relative_to(source)}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"xaspool_console/templates/base.html", "xaspool_console/static/console.css"} <= expected
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


def test_without_its_extra_the_command_names_the_extra(installation: Installation, tmp_path: Path) -> None:
    installation.run("spool-admin", "init", "shop", cwd=tmp_path)
    installation.run("spool-admin", "-s", "shop", "console", cwd=tmp_path, code=1)
