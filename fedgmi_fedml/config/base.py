"""What all sections share: strict, frozen, no unknown keys; and the reusable kinds of value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

FACTORY = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
"""``package.module:factory``, the import path of a user's own model."""


class Section(BaseModel):
    """One mapping of the configuration. Values keep their YAML type: no text for numbers, no 1 for true."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=False, allow_inf_nan=False)


def nearest(word: str, valid: Sequence[str]) -> str | None:
    """The valid name most like ``word``, or ``None`` when nothing is close."""
    lowered = {name.lower(): name for name in valid}
    found = get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def suggestion(word: str, valid: Sequence[str]) -> str:
    """``did you mean "x"? valid: …`` for an enumeration, without the question where nothing is close."""
    close = nearest(word, valid)
    question = f'did you mean "{close}"? ' if close else ""
    return f"{question}valid: {', '.join(valid)}"


def one_of(valid: Sequence[str], factory: bool = False) -> Callable[[str], str]:
    """Validator of a name among ``valid``; with ``factory`` an import path ``package.module:factory`` will do too."""

    def check(value: str) -> str:
        if value in valid or (factory and FACTORY.match(value)):
            return value
        more = ", or package.module:factory for your own" if factory else ""
        raise ValueError(f'"{value}" is not known: {suggestion(value, valid)}{more}')

    return check


def choice(valid: Sequence[str], factory: bool = False) -> Any:
    """Annotated ``str`` type whose values are ``valid`` (and, with ``factory``, import paths)."""
    schema: dict[str, Any] = {"enum": list(valid)}
    if factory:
        schema = {"anyOf": [{"enum": list(valid)}, {"pattern": FACTORY.pattern}]}
    return Annotated[str, AfterValidator(one_of(valid, factory)), Field(json_schema_extra=schema)]


Count = Annotated[int, Field(ge=1)]
"""A whole number, at least one."""
Natural = Annotated[int, Field(ge=0)]
"""A whole number, zero allowed."""
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
"""A share of a whole, 0 … below 1."""
