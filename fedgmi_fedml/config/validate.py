"""Plain values into a ``Config``; pydantic's findings in a user's words, with every problem and not just the first."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedgmi_fedml.config.base import suggestion
from fedgmi_fedml.config.checks import cross_checks
from fedgmi_fedml.config.models import Config
from fedgmi_fedml.config.reader import Document, KeyPath

_MUST = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping of keys",
    "model_attributes_type": "must be a mapping of keys",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}


def show(value: Any) -> str:
    """A value as the user may have written it, at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _remedy(kind: str, value: Any) -> str:
    """What to do about a value of the wrong type, where that is plain."""
    if isinstance(value, str) and kind in ("int_type", "float_type") and re.fullmatch(r"[-+.\deE_ ]+", value):
        return " in quotes; remove the quotes"
    if isinstance(value, str) and kind == "bool_type" and value.lower() in ("true", "false", "yes", "no"):
        return " in quotes; remove the quotes"
    if kind == "string_type" and isinstance(value, (int, float)):
        return "; put it in quotes"
    return ""


def phrase(error: ErrorDetails) -> str:
    """One of pydantic's errors as ``must be …, is …``."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "literal_error":
        names = [quoted or number for quoted, number in re.findall(r"'([^']*)'|(-?\d+)", context["expected"])]
        if len(names) == 1:
            return f"must be {names[0]}, is {show(value)}"
        if isinstance(value, str) and not names[0].isdigit():
            return f"{show(value)} is not known: {suggestion(value, names)}"
        return f"must be one of {', '.join(names)}, is {show(value)}"
    if kind == "unknown_name":
        return f"{show(value)} {error['msg']}"
    must = _MUST[kind].format(**context) if kind in _MUST else error["msg"]
    return f"{must}, is {show(value)}{_remedy(kind, value)}"


def _without(values: dict[str, Any], path: KeyPath) -> None:
    """Removes the entry at ``path``, or the innermost mapping's entry around it."""
    holder: Any = values
    for key in path[:-1]:
        inner = holder.get(key) if isinstance(holder, dict) else None
        if not isinstance(inner, dict):
            holder.pop(key, None)
            return
        holder = inner
    holder.pop(path[-1], None)


def _copy(value: Any) -> Any:
    """A deep copy of plain mappings; everything else is shared."""
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def validate(document: Document, values: dict[str, Any]) -> Config | None:
    """The configuration, or ``None`` when ``document.problems`` has grown.

    Where single values are wrong, the rest is still checked against each other, so that one message tells everything;
    checks that would rest on a wrong value are left out.
    """
    broken = {problem.path for problem in document.problems}
    rest = _copy(values)
    config = None
    for _ in range(3):  # removing a wrong value can only bring up another in rare nestings
        try:
            config = Config.model_validate(rest)
            break
        except ValidationError as errors:
            for error in errors.errors(include_url=False):
                path = tuple(error["loc"])
                document.report(path, phrase(error))
                broken.add(path)
                _without(rest, path)
    if config is None:
        return None
    for paths, text in cross_checks(config):
        if not any(_overlap(path, bad) for path in paths for bad in broken):
            document.report(paths[0], text)
    return None if document.problems else config


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    """Whether one path lies within the other."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]
