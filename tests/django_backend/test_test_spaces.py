"""While tests of a project run, its backend uses a temporary space, in each process another one."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]

SETTINGS = """
    import os

    SECRET_KEY, USE_TZ, INSTALLED_APPS = "of tests", True, ["django_xaspool"]
    if not os.environ.get("WITHOUT_DATABASE"):
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "live.sqlite3"}}
    WITH = {"outbox": True} if "DATABASES" in globals() else {"database": None}
    TASKS = {"default": {"BACKEND": "django_xaspool.XaspoolBackend", "OPTIONS": {"space": "live", **WITH}}}
    TASKS["default"]["QUEUES"] = ["default", "mail"]
"""
TESTS = """
    import os, time
    from pathlib import Path

    from django.core.management import CommandError, call_command
    from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
    from django_xaspool.tasks import task_backends
    from django_xaspool.testing import run_tasks
    from tests.django_backend.jobs import add, again, no_json

    def note():
        with open("spaces", "a") as file:
            file.write(f"{os.getpid()} {task_backends['default'].space.path}\\n")

    class Without(SimpleTestCase):
        def test_a_space(self):
            note()

    if "live.sqlite3" in str(__import__("django.conf").conf.settings.DATABASES):
        class Inside(TestCase):
            def test_tasks_run_in_the_transaction_of_the_test(self):
                note()
                task_backends["default"].space_with("default").purge("default")
                with self.captureOnCommitCallbacks(execute=True):
                    results = [add.enqueue(1, 2), no_json.enqueue(), again.enqueue()]
                with self.assertRaisesRegex(CommandError, "run_tasks"):
                    call_command("spool_worker", once=True)
                self.assertEqual(run_tasks(), 6)
                for result in results:
                    result.refresh()
                self.assertEqual([result.status for result in results], ["SUCCESSFUL", "FAILED", "FAILED"])

            def test_a_named_space(self):
                options = {"space": "live", "test_space": "named"}
                back_end = {"BACKEND": "django_xaspool.XaspoolBackend", "OPTIONS": options}
                with override_settings(TASKS={"default": back_end}):
                    self.assertEqual(os.path.basename(task_backends["default"].space.path), "named")

        class Committing(TransactionTestCase):
            def test_a_worker(self):
                note()
                result = add.enqueue(1)
                call_command("spool_worker", once=True)
                result.refresh()
                self.assertEqual(result.return_value, 1)
"""


@pytest.mark.parametrize("options", [[], ["--parallel", "2"], ["without"]], ids=["one", "parallel", "no database"])
def test_tests_of_a_project_never_touch_the_live_space(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "settings.py").write_text(dedent(SETTINGS))
    (tmp_path / "test_shop.py").write_text(dedent(TESTS))
    (tmp_path / "temporary").mkdir()
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "settings", "TMPDIR": str(tmp_path / "temporary"),
        "PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'scripts'}",
    }  # fmt: skip
    if options == ["without"]:
        options, environment["WITHOUT_DATABASE"] = [], "1"
    command = [sys.executable, "-m", "django", "test", *options]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    lines = (tmp_path / "spaces").read_text().split("\n")[:-1]
    assert len({line.split()[1] for line in lines}) == len({line.split()[0] for line in lines})
    assert not any(str(tmp_path / "live") in line for line in lines)
    assert not (tmp_path / "live").exists()
    assert list((tmp_path / "temporary").iterdir()) == []
