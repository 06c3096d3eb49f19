"""What all sections share: strict, frozen, no unknown keys; and the reusable kinds of value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, WrapValidator
from pydantic_core import PydanticCustomError

FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""``package.module:factory``, the import path of a user's own model."""


class Section(BaseModel):
    """One mapping of the configuration. Values keep their YAML type: no text for numbers, no 1 for true."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def nearest(word: str, valid: Sequence[str]) -> str | None:
    """The valid name most like ``word``, or ``None`` when nothing is close."""
    lowered = {name.lower(): name for name in valid}
    found = get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def suggestion(word: str, valid: Sequence[str]) -> str:
    """``did you mean "x"? Valid: …``, without the question where nothing is close."""
    close = nearest(word, valid)
    question = f'did you mean "{close}"? ' if close else ""
    return f"{question}Valid: {', '.join(valid)}"


def expected(what: str) -> WrapValidator:
    """One sentence in place of a union's list of failures: ``must be <what>``."""

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("expected", "must be {what}", {"what": what}) from None

    return WrapValidator(check)


def named(valid: Sequence[str], factory: bool = False) -> Any:
    """Metadata for a ``str`` that is one of ``valid``, or with ``factory`` the import path of a user's own model."""

    def check(value: str) -> str:
        if value in valid or (factory and FACTORY.fullmatch(value)):
            return value
        hint = suggestion(value, valid) + (", or package.module:factory for your own" if factory else "")
        raise PydanticCustomError("unknown_name", "is not known: {hint}", {"hint": hint})

    return AfterValidator(check)


def name_schema(valid: Sequence[str], factory: bool = False) -> WithJsonSchema:
    """JSON schema of ``named``."""
    names: dict[str, Any] = {"type": "string", "enum": list(valid)}
    if not factory:
        return WithJsonSchema(names)
    return WithJsonSchema({"anyOf": [names, {"type": "string", "pattern": f"^{FACTORY.pattern}$"}]})


Lax = Field(strict=False)
"""YAML has lists only; this lets one become a tuple."""

Count = Annotated[int, Field(ge=1)]
"""A whole number, at least one."""

Natural = Annotated[int, Field(ge=0)]
"""A whole number, zero allowed."""

Positive = Annotated[float, Field(gt=0)]
"""A number above zero."""

NonNegative = Annotated[float, Field(ge=0)]
"""A number, zero or more."""

Share = Annotated[float, Field(ge=0, lt=1)]
"""A share of a whole, from 0 to below 1."""
