"""Whose files these are: a space belongs to the user who owns its directory, and what helps where it does not."""

import os

from spool.model import layout


def advice(error: OSError) -> str:
    """What to do about a file that this process may not use."""
    name = error.filename
    path = os.fsdecode(name) if isinstance(name, str | bytes) else ""
    root = _space_of(path)
    try:
        there = path if os.path.lexists(path) else os.path.dirname(path)
        owner, space = os.lstat(there).st_uid, os.stat(root).st_uid
    except OSError:
        return "let this user write into the space's directory, then try again"
    me = os.geteuid()
    if space != me:
        return (
            f"the space belongs to user {_called(space)}, and this is user {_called(me)}: run it as its owner, "
            f"sudo -u {_called(space, quoted=True)} …"
        )
    if owner != me:
        what = "that file" if there == path else "its directory"
        return (
            f"{what} belongs to user {_called(owner)}, and the space to user {_called(space)}: give all of it to its "
            f"owner, sudo chown -R {_called(space)} {root}"
        )
    return "let this user, who owns it, read and write it (chmod u+rw), then try again"


def _space_of(path: str) -> str:
    """The directory of the space that the file lies in; the file's own, if that is unknown."""
    directory = os.path.dirname(path)
    while len(directory) > 1:
        if os.path.lexists(os.path.join(directory, layout.SETTINGS)):
            return directory
        directory = os.path.dirname(directory)
    return os.path.dirname(path)


def _called(user: int, *, quoted: bool = False) -> str:
    """A user's name, or else the number, as sudo takes it if ``quoted``."""
    import pwd  # only an error pays for it

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"'#{user}'" if quoted else str(user)
