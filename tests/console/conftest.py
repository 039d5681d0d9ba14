"""A running console on a real space, a client without a browser, and a headless Chromium."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

import spool  # noqa: E402
from forwarder.web.sockets import listening  # noqa: E402
from tests.console import sample  # noqa: E402
from xaspool_console.access import Access, known_hosts  # noqa: E402
from xaspool_console.app import application  # noqa: E402
from xaspool_console.console import Console  # noqa: E402
from xaspool_console.server import ConsoleServer  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "a-token-of-the-tests-0123456789"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync", "--disable-quic",
]  # fmt: skip


@dataclass
class Served:
    """A running console. records: the sentences about changes. root: the address of the browser's login."""

    space: spool.Space
    console: Console
    url: str
    records: list[str] = field(default_factory=list)
    root: str = ""

    def __post_init__(self) -> None:
        self.root = self.url

    def client(self, **headers: str) -> Any:
        # (verify: without https, the certificates need not be read for each client)
        return httpx.Client(base_url=self.url, headers=headers, follow_redirects=False, timeout=30, verify=False)

    @contextmanager
    def logged_in(self) -> Iterator[tuple[Any, str]]:
        """Yield a client with a login, below whose address its requests lie, and the token of its forms."""
        with self.client(Origin=self.url) as client:
            answer = client.post("/login", data={"token": TOKEN})
            assert answer.status_code == 303
            _, _, key, _ = answer.headers["location"].split("/")
            client.base_url = f"{self.url}/s/{key}"
            yield client, self.console.access._sessions[key].csrf


@contextmanager
def serving(
    space: spool.Space, *, changes: bool = False, metrics: Callable[[], Any] | None = None, published: bool = False
) -> Iterator[Served]:
    """Serve a console at a free port. With ``changes``, it has a token."""
    listeners = listening("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    access = Access(known_hosts("127.0.0.1", port, ()), TOKEN if changes else None)
    records: list[str] = []
    given = None if published else space
    console = Console(space.path, metrics or space.metrics, given, access, changes, records.append)
    server = ConsoleServer(application(console), listeners, console.refuse)
    try:
        yield Served(space, console, f"http://127.0.0.1:{port}", records)
    finally:
        assert server.close()


@pytest.fixture
def bakery(memory: Path) -> Iterator[spool.Space]:
    with sample.build(memory / "bakery") as space:
        yield space


@pytest.fixture
def reading(bakery: spool.Space) -> Iterator[Served]:
    with serving(bakery) as served:
        yield served


@pytest.fixture
def changing(bakery: spool.Space) -> Iterator[Served]:
    with serving(bakery, changes=True) as served:
        yield served


@contextmanager
def chromium() -> "Iterator[Browser]":
    """Start Chromium without a window. Raises the error of playwright if it does not start."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    pytest.importorskip("playwright", reason="needs the package playwright")
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"needs {CHROMIUM}: apt-get install chromium")
    with chromium() as started:
        yield started


@pytest.fixture
def opened(browser: "Browser") -> "Iterator[Callable[..., Page]]":
    """Open a page with options of a browser context. A script that runs, or an error of a script, fails the test."""
    contexts, problems = [], []

    def open_(**options: Any) -> "Page":
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


def failed_id(space: spool.Space) -> str:
    """Return the id of the only failed message of the bakery."""
    (entry,) = space.entries("errors")
    assert entry.id is not None
    return entry.id


def log_in(opened: "Opened", served: Served, **options: Any) -> "Page":
    """Open a page, and log in as an administrator, by keyboard. options: of the browser context."""
    page = opened(**options)
    page.goto(f"{served.url}/login")
    page.get_by_label("token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    served.root = page.url.rstrip("/")
    return page


Opened = Callable[..., "Page"]
Serving = Callable[..., AbstractContextManager[Served]]
