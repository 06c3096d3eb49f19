"""JSON schema of a configuration file, for editors (``configs/schema.json``; ``fedgmi config schema`` prints it)."""

from __future__ import annotations

import json
from typing import Any

from fedgmi_fedml.config.models import Config
from fedgmi_fedml.config.vocabulary import AGENT_SECTIONS, REQUIRED


def config_schema() -> dict[str, Any]:
    """The schema as plain values: pydantic's, plus what every file must say."""
    schema = Config.model_json_schema()
    definitions = schema["$defs"]
    sections = sorted({str(section) for section, _ in REQUIRED})
    for section in sections:
        name = schema["properties"][section]["$ref"].rpartition("/")[2]
        definitions[name]["required"] = [key for home, key in REQUIRED if home == section]
    schema["required"] = sections
    for section in AGENT_SECTIONS:
        schema["properties"][section] = {"type": "object", "description": "Added by FedML's agents; not ours."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "FedGMI training configuration",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def schema_text() -> str:
    """The schema as it lies in ``configs/schema.json``."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"
