"""A project of Django in the process of the tests: its settings, and a new space for each test."""

from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import override_settings

from tests.django_backend import conf

settings.configure(**{name: getattr(conf, name) for name in dir(conf) if name.isupper()})
django.setup()
call_command("migrate", verbosity=0)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The path of the space that the setting TASKS names."""
    space = tmp_path / "space"
    with override_settings(TASKS=conf.tasks_in(space)):
        yield space
