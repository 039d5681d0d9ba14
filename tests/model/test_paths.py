"""The directory that a caller names: a ``file`` URL means its path, and any other URL is refused at every door."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

import spool
from spool.model.paths import local_path


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("file:///p", "/p"),
        ("file:/p/q", "/p/q"),  # as Java writes it
        ("file://localhost/p", "/p"),
        ("file:///a%20b%25", "/a b%"),
        (Path("file:///p"), "/p"),
        ("/p", "/p"),
        ("p", "p"),
        ("/var/a:b/c", "/var/a:b/c"),
        ("a:b", "a:b"),
    ],
)
def test_a_file_url_means_its_path(given: str | Path, path: str) -> None:
    assert local_path(given) == path


URLS = [
    "s3://bucket/p", "hdfs:///p", "dbfs:/p", "file://host/p", "file:p", "http://host/p", "/srv/file:/p", "./s3:/p",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_another_url_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(spool.InvalidArgument, match=r"is a URL, .* file:///var/spool/shop") as error:
        local_path(url)
    assert "init" not in str(error.value), "advice to make a space in a misread directory"


def test_a_directory_that_looks_like_a_url_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "s3:").mkdir()
    assert local_path(f"{tmp_path}/s3:/") == f"{tmp_path}/s3:/"


def mirrored(url: str) -> spool.Space:
    return spool.mirrors.begin(url, url)


DOORS: list[Callable[[str], object]] = [spool.open, spool.create, spool.shared, mirrored]


@pytest.mark.parametrize(("path", "said"), [("s3://bucket/p", "is a URL"), ("", "is an empty path")])
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_a_url_or_an_empty_path_and_makes_no_directory(
    door: Callable[[str], object], path: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(spool.InvalidArgument, match=said):
        door(path)
    assert list(tmp_path.iterdir()) == []


def test_every_door_takes_a_file_url(tmp_path: Path) -> None:
    url = f"file://{quote(str(tmp_path / 'a space'))}"
    spool.create(url).close()
    with spool.open(url) as space:
        assert space.path == str(tmp_path / "a space")
        assert spool.shared(url).path == space.path
