"""Sections as FedML needs them: mappings, not empty, no key outside or in two of them, none unknown, none missing."""

from __future__ import annotations

from typing import Any

from fedgmi_fedml.config.base import nearest
from fedgmi_fedml.config.models import Config
from fedgmi_fedml.config.reader import Document
from fedgmi_fedml.config.vocabulary import AGENT_KEYS, AGENT_SECTIONS, REQUIRED, all_paths, drop_unknown, keys_of


def tidy(document: Document, complete: bool = True) -> dict[str, Any]:
    """The sections of a document that can be validated further; whatever is wrong with the rest is reported.

    Args:
        document: what was read, overrides included.
        complete: whether the keys that every file must have are asked for.
    """
    sections = {name: body for name, body in document.values.items() if _is_section(document, name, body)}
    _report_flattening(document, sections)
    kept = {}
    for name, body in sections.items():
        body = {key: value for key, value in body.items() if key not in AGENT_KEYS.get(name, ())}
        model = keys_of(Config)[name]
        kept[name] = drop_unknown(document, body, model, (name,))
    if complete:
        for section, key in REQUIRED:
            if key not in kept.get(str(section), {}):
                document.report((section, key), "missing; every configuration file must say it", place="")
    return kept


def _is_section(document: Document, name: str, body: Any) -> bool:
    """Whether a top-level entry is one of our sections and a mapping; reports it otherwise."""
    known = keys_of(Config)
    if name in AGENT_SECTIONS and isinstance(body, dict):
        return False
    if name not in known:
        document.report((name,), _describe_stray(document, name, body))
        return False
    if isinstance(body, dict):
        return True
    if body is None:
        document.report((name,), "the section is empty, which FedML cannot read; give it a key or remove it")
    else:
        document.report((name,), "must be a section (a mapping of keys), not a single value or list")
    return False


def _describe_stray(document: Document, name: str, body: Any) -> str:
    homes = all_paths().get(name, ())
    if homes:
        return f"stands outside every section; it belongs in section {homes[0][0]}"
    if not isinstance(body, dict):
        return "a value outside every section, which FedML cannot read; remove it"
    close = nearest(name, list(keys_of(Config)))
    question = f'did you mean "{close}"?' if close else f"valid sections: {', '.join(keys_of(Config))}"
    return f"unknown section; {question}"


def _report_flattening(document: Document, sections: dict[str, dict[str, Any]]) -> None:
    """The same first-level key in two sections: FedML keeps only the last. The stranger of the two goes."""
    homes: dict[str, str] = {}
    for section, body in sections.items():
        for key in list(body):
            other = homes.setdefault(key, section)
            if other == section:
                continue
            proper = other if key not in keys_of(keys_of(Config)[section]) else section
            stray = section if proper == other else other
            document.report(
                (stray, key),
                f"also in section {proper} ({document.place((proper, key))}); FedML drops the sections' names and "
                f"the last one wins; keep the one in {proper}",
            )
            sections[stray].pop(key)
            homes[key] = proper
