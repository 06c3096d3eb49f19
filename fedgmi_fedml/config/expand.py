"""``~``, ``${VARIABLE}`` and ``${VARIABLE:-default}`` in paths."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from fedgmi_fedml.config.reader import Document, KeyPath
from fedgmi_fedml.config.sections import CACHE_FOLDER

PATH_KEYS: tuple[tuple[str, str], ...] = (
    ("data_args", "data_path"),
    ("data_args", "data_cache_dir"),
    ("tracking_args", "output_dir"),
)
"""The values that are expanded. All are excluded from the digest: paths differ from party to party."""

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}")


def expand_paths(document: Document, values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with its paths expanded, defaults too; an unset variable without a default is reported."""
    values = {"data_args": {}, **values}
    for section, key in PATH_KEYS:
        body = values.get(section)
        if not isinstance(body, dict):
            continue
        text = body.get(key, CACHE_FOLDER if key == "data_cache_dir" else None)
        if isinstance(text, str):
            body[key] = _expand(document, (section, key), text)
    return values


def _expand(document: Document, path: KeyPath, text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        value = os.environ.get(match["name"]) or match["default"]
        if value is None:
            document.report(
                path,
                f"the environment variable {match['name']} is not set; set it (export {match['name']}=/folder), "
                f"or write ${{{match['name']}:-/default/folder}} or the path itself",
            )
            return match[0]
        return value

    filled = _VARIABLE.sub(fill, text)
    return str(Path(filled).expanduser()) if filled.startswith("~") else filled
