"""Detect other distributions with packages of the same names: PyPI has ``spool``, ``xa`` and ``forwarder``.

pip silently overwrites files of xaspool with files of another distribution. The removal of the other distribution then
removes these files, so xaspool is incomplete. This module imports no package of xaspool, because the imported files may
belong to the other distribution.
"""

import os

_OURS = "xaspool"
_PACKAGES = (
    "spool", "xa", "recovery", "forwarder", "xaspool_console", "xaspool_scripts", "pyspark_xaspool", "celery_xaspool",
)  # fmt: skip
_BESIDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the directory of xaspool's packages
_METADATA = (".dist-info", ".egg-info")
# The advice gives a path and no name, because xaspool is on no package index, and a stranger could use the name.
_AGAIN = "pip install --force-reinstall --no-deps ./xaspool, which is the wheel or the repository of xaspool"


def others() -> dict[str, list[str]]:
    """Return xaspool's packages that other distributions also install, with the other distributions' versions."""
    from importlib.metadata import packages_distributions, version

    found = packages_distributions()
    named = {package: sorted(set(found.get(package, ())) - {_OURS}) for package in _PACKAGES}
    return {package: [f"{name} {version(name)}" for name in names] for package, names in named.items() if names}


def damaged() -> list[str]:
    """Return the packages of an installed xaspool with missing files or with files of another distribution."""
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
    """Return a sentence with the distribution that replaces xaspool's files, and the remedy; None without a problem."""
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

    Each program calls this function at its start. To be fast, the function first looks for the metadata of other
    distributions beside xaspool, because this check needs no imports.
    """
    try:
        names = os.listdir(_BESIDE)
    except OSError:  # e.g. the packages are in a zip file
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
