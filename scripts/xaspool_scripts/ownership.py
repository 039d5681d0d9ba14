"""Other distributions that install packages with the names of ours: PyPI has ``spool``, ``xa`` and ``forwarder``.

pip overwrites the files of another distribution silently. The removal of that distribution then removes the files, and
xaspool is incomplete. This module imports none of these packages, because they may be the wrong ones.
"""

import os

_OURS = "xaspool"
_PACKAGES = ("spool", "xa", "recovery", "forwarder", "xaspool_console", "xaspool_scripts", "pyspark_xaspool")
_BESIDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # where an installed xaspool has its packages
_METADATA = (".dist-info", ".egg-info")
# Not by name: the package is on no index, where a name could be that of a stranger.
_AGAIN = "pip install --force-reinstall --no-deps ./xaspool, which is the wheel or the repository of xaspool"


def others() -> dict[str, list[str]]:
    """Return the packages of xaspool that other distributions install, too, with the names and versions of these."""
    from importlib.metadata import packages_distributions, version

    found = packages_distributions()
    named = {package: sorted(set(found.get(package, ())) - {_OURS}) for package in _PACKAGES}
    return {package: [f"{name} {version(name)}" for name in names] for package, names in named.items() if names}


def damaged() -> list[str]:
    """Return the packages of an installed xaspool that lack files, or that have files of another distribution."""
    from base64 import urlsafe_b64encode
    from hashlib import sha256
    from importlib.metadata import PackageNotFoundError, files

    try:
        listed = files(_OURS) or ()
    except PackageNotFoundError:
        return []
    found = set()
    for file in listed:
        package = file.parts[0]
        if package in _PACKAGES and package not in found and file.suffix == ".py" and file.hash is not None:
            try:
                digest = sha256(file.read_binary()).digest()
            except OSError:
                digest = b""
            if urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                found.add(package)
    return sorted(found)


def sentence() -> str | None:
    """Return which other distribution has the files of xaspool, and the remedy; None if the files are ours."""
    wrong, owners = damaged(), others()
    names = sorted({name for package in wrong or owners for name in owners.get(package, ())})
    if not names:
        lost = " and ".join(wrong)
        return f"files of {lost} are not those of xaspool: {_AGAIN}" if wrong else None
    packages = sorted(package for package in owners if not wrong or package in wrong)
    have = "has overwritten" if wrong else "installs"
    return (
        f"{' and '.join(names)} {have} the package {' and '.join(packages)} of xaspool: pip uninstall "
        f"{' '.join(name.partition(' ')[0] for name in names)}, then {_AGAIN}"
    )


def overwritten() -> str | None:
    """Return ``sentence()`` if files of xaspool were overwritten, otherwise None.

    Each program calls this when it starts. So the function first looks for the metadata of such a distribution beside
    xaspool, which takes no imports.
    """
    try:
        names = os.listdir(_BESIDE)
    except OSError:  # a zip file
        return None
    if any(name.endswith(_METADATA) and name.partition("-")[0] in _PACKAGES for name in names) and damaged():
        return sentence()
    return None


def explain(error: BaseException) -> str | None:
    """Return ``sentence()`` if an error shows that a package of xaspool lacks a module or a name, otherwise None."""
    package = ""
    if isinstance(error, ImportError):
        package = error.name or ""
    elif isinstance(error, AttributeError):
        package = str(getattr(error.obj, "__name__", ""))
    return sentence() if package.partition(".")[0] in _PACKAGES else None
