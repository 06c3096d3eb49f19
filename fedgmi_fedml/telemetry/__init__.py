"""What a run tells about itself, through an allow-list of what may leave a silo or be shown by the server."""

from __future__ import annotations

from fedgmi_fedml.telemetry.logs import setup_logging
from fedgmi_fedml.telemetry.outlets import Telemetry, open_telemetry
from fedgmi_fedml.telemetry.sinks import (
    BackgroundSink,
    JsonLinesSink,
    MemorySink,
    Sink,
    TensorBoardSink,
    read_json_lines,
    rewind,
)
from fedgmi_fedml.telemetry.vocabulary import EVENTS, ROUND_FIELDS, TelemetryError, clean_record

__all__ = [
    "EVENTS",
    "ROUND_FIELDS",
    "BackgroundSink",
    "JsonLinesSink",
    "MemorySink",
    "Sink",
    "Telemetry",
    "TelemetryError",
    "TensorBoardSink",
    "clean_record",
    "open_telemetry",
    "read_json_lines",
    "rewind",
    "setup_logging",
]
