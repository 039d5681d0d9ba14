"""The TOML file of a pipeline."""

import tomllib
from pathlib import Path
from typing import Any

from forwarder.services import ServiceError


class PipelineError(ServiceError):
    """A pipeline cannot work as it is described. Each line of the text names one mistake, with its place."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return what a TOML file says. Raises PipelineError if it cannot be read."""
    try:
        return tomllib.loads(Path(path).read_bytes().decode())
    except OSError as error:
        raise PipelineError(f"{path}: it cannot be read ({error.strerror}): name the TOML file of a pipeline") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: it is not TOML: {error}") from None
