"""All files of a space belong to the user that owns its directory, even if root works in the space."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import spool
from spool.admin.doctor import examine
from spool.disk import Disk
from spool.disk.advice import advice
from spool.intake import Intake
from spool.watch.published import read_metrics
from tests import door
from tests.at_once import AT_ONCE
from tests.spaces import fail_one
from tests.users import directory_of

OWNER, GROUP = 1234, 65534


def of_owner(root: Path) -> Path:
    """Make a directory of the owner."""
    root.mkdir()
    os.chown(root, OWNER, GROUP)
    return root


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that every user may enter."""
    with directory_of(0) as made:
        yield made


class Child:
    """A process of the owner: does the work, in pieces between which it waits for its parent."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        self._here, there = os.pipe()
        theirs, self._go = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(there)
            os.close(theirs)
            return
        os.close(self._here)
        os.close(self._go)  # or it would wait for ever for a parent that is gone
        said = b"done"
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(OWNER)

            def pause() -> None:
                os.write(there, b"pause")
                os.read(theirs, 1)

            work(pause)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}".encode()
        finally:
            os.write(there, said)
            os._exit(0)

    def goes_on(self) -> str:
        """Let the child go on until it pauses or ends, and return its report."""
        os.write(self._go, b".")
        return os.read(self._here, 4096).decode()

    def begins(self) -> str:
        return os.read(self._here, 4096).decode()

    def buried(self) -> None:
        os.waitpid(self._pid, 0)


def as_owner(work: Callable[[], None]) -> str:
    child = Child(lambda pause: work())
    said = child.begins()
    child.buried()
    return said


def not_the_owner_s(root: Path) -> list[str]:
    found = [Path(directory, name) for directory, _, names in os.walk(root) for name in (".", *names)]
    return sorted(str(path.relative_to(root)) for path in found if path.lstat().st_uid != OWNER)


def make(root: Path, mirror: Path) -> None:
    with spool.create(root, mirror=str(mirror), defaults=AT_ONCE) as space:
        space.create_queue("q")
        space.put_many("q", ["one", "two", "three"])


def a_root_s_day(root: Path, new_queue: str) -> None:
    """Make the calls that an administrator may make as root."""
    with spool.open(root) as space:
        space.put("q", "of root")
        space.create_queue(new_queue)
        space.change_queue("q", retries=3, error_queue=new_queue)
        fail_one(space, "q")
        space.get("q")
        space.submit("q", b"x" * 100_000).result(60)
        (root / "drop" / "q" / "a.txt").write_text("dropped")
        (root / "drop" / "q" / "bad.msgpack").write_bytes(b"\xc1")
        os.utime(root / "drop" / "q" / "a.txt", (0, 0))
        os.utime(root / "drop" / "q" / "bad.msgpack", (0, 0))
        Intake(space).run(once=True)
        door.compact(space)
        with space.transaction() as tx:
            tx.put_many("q", [b"y" * 1000] * 3000)
        door.save(space)
        space.check(repair=True)


@pytest.mark.root
def test_files_that_root_makes_in_a_space_belong_to_its_owner(directory: Path) -> None:
    make(directory / "warmed up", directory / "and mirrored")  # so that everything is imported
    mirrors = directory / "mirrors"
    for each in (root := directory / "space", mirrors):
        each.mkdir()
        os.chown(each, OWNER, GROUP)
    assert as_owner(lambda: make(root, mirrors / "mirror")) == "done"

    def works_on(pause: Callable[[], None]) -> None:
        with spool.open(root) as space:
            pause()
            for _ in range(3):
                space.get("q")
            space.put("q", "of its owner")
            assert space.stats("q").ready
            space.change_queue("q", retries=5)

    child = Child(works_on)
    assert child.begins() == "pause"
    a_root_s_day(root, "errors")
    assert not_the_owner_s(root) == not_the_owner_s(mirrors) == []
    assert child.goes_on() == "done"
    child.buried()
    shutil.rmtree(root / "run")
    a_root_s_day(root, "more")  # the first opener creates run/ again
    assert not_the_owner_s(root) == not_the_owner_s(mirrors) == []

    def opens_it_again() -> None:
        with spool.open(root) as space:
            space.get("q")
            assert space.check() == []

    assert as_owner(opens_it_again) == "done"


@pytest.mark.root
def test_a_file_that_cannot_be_given_to_the_owner_is_not_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = of_owner(directory / "space")

    def refused(path: str, *owner: object, **how: object) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(os, "chown", refused)
    with pytest.raises(spool.DiskFailure, match=f"{OWNER}, and this is user root: .*sudo -u '#{OWNER}'"):
        spool.create(root)
    assert not [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.root
def test_another_user_is_told_how_to_be_the_owner(directory: Path) -> None:
    root = directory / "space"
    spool.create(root).close()
    root.chmod(0o755)
    said = as_owner(lambda: spool.open(root).close())
    assert f"the space belongs to user root, and this is user {OWNER}" in said
    assert f"sudo -u root …, or give it to this user, sudo chown -R {OWNER} {root}" in said


@pytest.mark.root
def test_a_user_who_may_not_make_the_directory_is_not_advised_to_take_the_one_above(directory: Path) -> None:
    root = directory / "spools" / "shop"
    said = as_owner(lambda: spool.create(root).close())
    assert f"user {OWNER} may not make {root}, because {directory} belongs to user root: choose another path" in said
    assert f"sudo install -d -m 700 -o {OWNER} {root}" in said
    assert "chown" not in said
    assert list(directory.iterdir()) == []


@pytest.mark.root
def test_a_file_of_another_user_is_named_with_the_way_to_give_it_to_the_owner(directory: Path) -> None:
    root = of_owner(directory / "space")
    assert as_owner(lambda: spool.create(root).close()) == "done"
    os.chown(root / "space.toml", 0, 0)
    said = as_owner(lambda: spool.open(root).close())
    assert f"that file belongs to user root, and the space to user {OWNER}" in said
    assert f"sudo chown -R {OWNER} {root}" in said


@pytest.mark.root
def test_a_directory_that_hides_the_space_is_named(directory: Path) -> None:
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    root = closed / "space"
    spool.create(root).close()
    for call in (spool.open, read_metrics):
        said = as_owner(partial(call, root))
        assert f"user {OWNER} may not look for {root}, because {closed} belongs to user root" in said
    assert "is not a directory: make a queue space there" in as_owner(lambda: spool.open(directory / "missing"))


@pytest.mark.root
@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["space.toml", "committed", "run/control"])
def test_the_doctor_refuses_a_space_that_its_owner_cannot_open(directory: Path, name: str) -> None:
    root = of_owner(directory / "space")
    spool.create(root).close()
    assert {proof.what: proof for proof in examine(Disk(str(root)))}["owner"].outcome == "fine"
    mode = (root / name).stat().st_mode
    (root / name).chmod(0o000)
    closed = {proof.what: proof for proof in examine(Disk(str(root)))}["owner"]
    assert (closed.outcome, f"may not read and write {name}" in closed.detail) == ("refused", True)
    (root / name).chmod(mode)
    os.chown(root / name, 0, 0)
    foreign = {proof.what: proof for proof in examine(Disk(str(root)))}["owner"]
    assert (foreign.outcome, f"{name} belongs to user root" in foreign.detail) == ("refused", True)
    assert f"sudo chown -R {OWNER} {root}" in foreign.detail


@pytest.mark.root
def test_of_the_two_names_of_a_rename_the_one_with_another_owner_is_named(directory: Path) -> None:
    root = of_owner(directory / "space")
    assert as_owner(lambda: spool.create(root).close()) == "done"
    os.chown(root / "committed", 0, 0)
    (root / "committed").chmod(0o755)

    def rename() -> None:
        try:
            os.rename(root / "space.toml", root / "committed" / "new")
        except PermissionError as error:
            raise AssertionError(advice(error)) from None

    said = as_owner(rename)
    assert "its directory belongs to user root" in said
    assert f"sudo chown -R {OWNER} {root}" in said


@pytest.mark.root
def test_root_changes_nothing_in_a_mirror_of_another_user_s_than_the_space(directory: Path) -> None:
    """The owner of a space may write into its settings, and so name a directory in which only root may work."""
    root, precious = of_owner(directory / "space"), directory / "precious"
    assert as_owner(lambda: spool.create(root).close()) == "done"
    precious.mkdir()
    (precious / "0000000000000001.msgpack").write_bytes(b"root's")
    settings = root / "space.toml"
    settings.write_text(f'mirror = "{precious}"\n{settings.read_text()}')
    with pytest.raises(spool.DiskFailure, match=rf"precious belongs to user root, and the space to user {OWNER}"):
        spool.open(root)
    assert [file.name for file in precious.iterdir()] == ["0000000000000001.msgpack"]
    os.chown(precious, OWNER, GROUP)
    with pytest.raises(spool.MirrorMismatch):  # it is their own business, and no mirror of this space
        spool.open(root)


@pytest.mark.root
def test_a_process_of_root_s_runs_the_capacity_command_as_the_owner_of_the_space(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, said = directory / "space", directory / "said"
    root.mkdir()
    os.mkfifo(said)
    for path in (root, said):
        os.chown(path, OWNER, GROUP)
    monkeypatch.setenv("PASSWORD", "root's")
    command = f'echo "$(id -u) $(id -G) $PASSWORD $SPOOL_QUEUE" > {said}'

    def make() -> None:
        with spool.create(root) as space:
            space.create_queue("q", capacity_high="1 message", capacity_command=command)

    assert as_owner(make) == "done"
    with spool.open(root) as space:
        space.put("q", "full")
    assert said.read_text() == f"{OWNER} {GROUP}  q\n"


@pytest.mark.root
def test_the_advice_names_the_directory_that_its_owner_may_not_write(directory: Path) -> None:
    def puts(root: Path) -> None:
        with spool.create(root) as space:
            space.create_queue("q")
            (root / "committed").chmod(0o500)
            space.put("q", "kept")

    puts(directory / "of root")  # so that everything is imported
    root = of_owner(directory / "space")
    assert f"read and write {root}/committed (chmod u+rwX)" in as_owner(lambda: puts(root))


def test_an_error_that_names_no_file_has_advice_all_the_same() -> None:
    assert advice(PermissionError(13, "no")) == "let this user write into the space's directory, then try again"


@pytest.mark.root
@pytest.mark.parametrize("make", ["create", "make_directory", "give_to_owner"])
def test_a_file_that_takes_a_name_while_root_gives_it_away_keeps_its_owner(
    directory: Path, make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner may rename files in the space's directories between any two calls of a process of root."""
    root, precious = of_owner(directory / "space"), directory / "precious"
    disk = Disk(str(root))
    if make == "give_to_owner":
        (root / "name").touch()
    change, asked = os.chown, []

    def swapping(path: str, *owner: int, **how: bool) -> None:
        asked.append(path)
        (root / "name").rename(root / "moved away")
        precious.mkdir() if make == "make_directory" else precious.touch()
        precious.rename(root / "name")
        change(path, *owner, **how)

    monkeypatch.setattr(os, "chown", swapping)
    getattr(disk, make)("name")
    assert asked
    assert ((root / "name").stat().st_uid, (root / "moved away").stat().st_uid) == (0, OWNER)
    disk.close_all()


@pytest.mark.root
def test_a_file_with_another_name_is_not_given_away(directory: Path) -> None:
    root = of_owner(directory / "space")
    (directory / "precious").touch()
    os.link(directory / "precious", root / "name")
    Disk(str(root)).give_to_owner("name")
    assert (root / "name").stat().st_uid == 0
