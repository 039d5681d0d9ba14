"""Advice about errors of the operating system, for the administrator."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote

from spool.errors import DiskFailure, SpoolError
from spool.model import layout

_TRY_AGAIN = {
    errno.ENOSPC: "free space on the disk, then try again (spool-admin queue purge works without room)",
    errno.EDQUOT: "raise the quota or free space, then try again",
    errno.EROFS: "mount the file system writable, then try again",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then try again",
    errno.ESTALE: "put the directory back; only without active/, free/ or run/, close the space and open it again",
    errno.EIO: "check the disk (dmesg tells more)",
}


def advice(error: OSError, otherwise: str = "remove the cause, then try again") -> str:
    """Return the advice about an error, or `otherwise` for an unknown error."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return _about_owners(error)
    return _TRY_AGAIN.get(error.errno or 0, otherwise)


def as_failure(doing: str, error: OSError, kept: str = "", directory: str = "") -> DiskFailure:
    """Return the error of the operating system as an error of the library.

    The error text has the call, the failure and the advice.

    Args:
        doing: the name of the failed call, with which the text begins.
        kept: a note about the space's messages.
        directory: the place to name if the error names no file. For example, the error of a full disk names no file.
    """
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else directory
    where = f": {place}" if place else ""
    return DiskFailure(error.errno or 0, f"{doing}: {error.strerror or error}{where}{kept}: {advice(error)}")


@contextmanager
def translated(doing: str, directory: str = "") -> Iterator[None]:
    """Raise the operating system's errors as DiskFailure. For the arguments see ``as_failure``. (An open store converts
    the errors itself.)"""
    try:
        yield
    except SpoolError:
        raise
    except OSError as error:
        raise as_failure(doing, error, directory=directory) from error


def _about_owners(error: OSError) -> str:
    """Return the advice about a file that this process may not use; for a rename, about one of the two names."""
    names = (error.filename, error.filename2)
    paths = [os.fsdecode(name) for name in names if isinstance(name, str | bytes)] or [""]
    try:
        found = list(filter(None, map(_of_others, paths)))
    except OSError:
        return "let this user write into the space's directory, then try again"
    if found:
        return found[0]
    closed = [place for place in map(os.path.dirname, paths) if place and not os.access(place, os.W_OK | os.X_OK)]
    return f"let this user, who owns it, read and write {closed[0] if closed else 'it'} (chmod u+rwX), then try again"


def _of_others(path: str) -> str | None:
    """Return the advice about a file of another user, or None. A space belongs to the user who owns its directory."""
    root = space_of(path) or os.path.dirname(path)
    existing = path if os.path.lexists(path) else os.path.dirname(path)
    owner, space, user = os.lstat(existing).st_uid, os.stat(root).st_uid, os.geteuid()
    if space != user:
        return of_another_user("the space", root, space)
    if owner != user:
        what = ("that directory" if os.path.isdir(path) else "that file") if existing == path else "its directory"
        return f"{what} {not_of_the_owner(root, owner, space)}"
    return None


def of_another_user(what: str, root: str, owner: int) -> str:
    """Return the advice about a directory whose owner is not the user of this process. The directory is, or becomes, a
    space."""
    user = user_name(os.geteuid())
    return (
        f"{what} belongs to user {user_name(owner)}, and this is user {user}: run it as its owner, sudo -u "
        f"{user_name(owner, quoted=True)} …, or give it to this user, sudo chown -R {user} {quote(root)}"
    )


def not_of_the_owner(root: str, owner: int, space: int) -> str:
    """Return the advice about a file whose owner is not the space's owner. In the text, the file name precedes the
    advice."""
    return (
        f"belongs to user {user_name(owner)}, and the space to user {user_name(space)}: give all of it to its owner, "
        f"sudo chown -R {user_name(space)} {quote(root)}"
    )


def is_directory(path: str) -> bool:
    """Return whether a directory exists at this path.

    Raises DiskFailure if this user may not search a parent directory. The text names the parent directory.
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError as error:
        above = os.path.dirname(os.path.abspath(path))
        while os.path.dirname(above) != above and not os.access(os.path.dirname(above), os.X_OK):
            above = os.path.dirname(above)
        raise DiskFailure(
            error.errno or 0,
            f"user {user_name(os.geteuid())} may not look for {path}, because {above} belongs to user "
            f"{user_name(os.stat(above).st_uid)}: run it as the space's owner, or let this user search that directory",
        ) from None
    except OSError:
        return False


def space_of(path: str) -> str | None:
    """Return the directory of the space in which an absolute path lies, or None if the path lies in no space."""
    while len(path) > 1:
        if os.path.lexists(os.path.join(path, layout.SETTINGS)):
            return path
        path = os.path.dirname(path)
    return None


def user_name(user: int, *, quoted: bool = False) -> str:
    """Return a user's name, or the user's number if no name is known. `quoted`: return the number in the form for
    sudo."""
    import pwd  # imported here, because only the text of an error needs the module

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"'#{user}'" if quoted else str(user)
