"""``spool-admin docs``: print the installed pages of the documentation."""

import importlib.metadata
from pathlib import Path

import click

from xaspool_scripts.terminal.program import Failure

_INDEX = "README"


@click.command()
@click.argument("page", default=_INDEX)
def docs(page: str) -> None:
    """Print a page of the documentation; without PAGE, the list of the pages.

    \b
    Examples:
      spool-admin docs
      spool-admin docs first-steps | less
    """
    pages = _pages()
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        from spool.model.text import did_you_mean

        there = sorted(set(pages) - {_INDEX})
        raise Failure(f"there is no page {page}{did_you_mean(name, there) or '.'} The pages are {', '.join(there)}")
    click.echo(pages[name].read_text(), nl=False)


def _pages() -> dict[str, Path]:
    """Return the installed pages by name. If no page is installed, return the pages of this file's source tree."""
    try:
        files = importlib.metadata.files("xaspool") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    installed = [Path(str(file.locate())) for file in files if file.match("share/doc/xaspool/docs/*.md")]
    pages = installed or list((Path(__file__).parents[3] / "docs").glob("*.md"))
    if not pages:
        raise Failure("the pages were not installed: they are in the folder docs of the source distribution")
    return {file.stem: file for file in pages}
