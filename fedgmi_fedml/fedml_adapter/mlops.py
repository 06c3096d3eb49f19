"""FedML's MLOps as one more outlet of the run's telemetry: round info, phase events, summed metrics and status.

What is sent is listed here, name by name, and goes through ``fedml.mlops``' own functions, so that topics and payloads
are FedML's. Never sent: models (a silo's own or the shared ones), counts, proportions, and a silo's own losses. A silo
sends its status and the phase it works in, nothing else. Nothing here starts FedML's system profiling or uploads a
model's net.

FedML's functions wait for their broker and hold a lock meanwhile, so all of them run on one thread of ours, behind a
bounded queue, over a connection that never waits: a broker that is dead, slow or mute costs the run nothing but these
messages, and at its end at most ``FAREWELL`` seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import fedml.core.mlops
from fedml import mlops
from fedml.computing.scheduler.master.server_constants import ServerConstants
from fedml.computing.scheduler.slave.client_constants import ClientConstants
from fedml.core.distributed.communication.mqtt.mqtt_manager import MqttManager
from fedml.core.mlops import MLOpsConfigs, MLOpsMetrics, MLOpsProfilerEvent, MLOpsStore

from fedgmi_fedml.summary import Audience
from fedgmi_fedml.telemetry import BackgroundSink, Sink
from fedgmi_fedml.telemetry.sinks import Record, scalars

__all__ = ["METRICS", "keep_random_state", "mlops_outlets"]

log = logging.getLogger(__name__)

METRICS = (
    "vae_loss", "expert_loss", "candidate_loss", "validation_accuracy", "test_accuracy", "confidence", "seconds",
    "bytes_up", "bytes_down",
)  # fmt: skip
"""What the server sends of a round: sums over silos, as secure aggregation gave them to it, and its own cost."""

FAREWELL = 5.0
"""How long the end of a run waits for the broker to confirm the last messages, seconds."""

WAITING = 500
"""Messages that wait for a broker that does not answer; further ones are dropped."""

ASK_AGAIN = 30.0
"""How long a platform that could not be reached is left alone, seconds."""

_SERVER = (
    mlops.log_aggregation_status,
    ServerConstants.MSG_MLOPS_SERVER_STATUS_RUNNING,
    ServerConstants.MSG_MLOPS_SERVER_STATUS_FINISHED,
    ServerConstants.MSG_MLOPS_SERVER_STATUS_FAILED,
)
_SILO = (
    mlops.log_training_status,
    ClientConstants.MSG_MLOPS_CLIENT_STATUS_TRAINING,
    ClientConstants.MSG_MLOPS_CLIENT_STATUS_FINISHED,
    ClientConstants.MSG_MLOPS_CLIENT_STATUS_FAILED,
)


def mlops_outlets(args: Any, plan: Mapping[str, int]) -> list[tuple[Sink, Audience]]:
    """Further outlets for ``open_telemetry``: none where ``args.using_mlops`` is false, and then nothing is contacted.

    Args:
        args: FedML's arguments, as ``fedml.init`` left them: ``rank`` 0 is the server; ``run_id`` and the edge ids
            name the run on the platform.
        plan: rounds by phase, in order, as ``rounds.watch.rounds_to_come`` counts them.
    """
    keep_random_state()
    if not getattr(args, "using_mlops", False):
        return []
    mlops.pre_setup(args)
    fedml.core.mlops.set_realtime_params()  # else FedML's first status message goes to edge "None"
    return [(BackgroundSink(_MlopsSink(args.rank == 0, plan), patience=FAREWELL + 1), "server")]


def keep_random_state() -> None:
    """FedML re-initialises itself on every ``mlops.log``, which seeds ``random``, NumPy and torch anew with the public
    ``random_seed``: training would draw the same numbers again after every line. The arguments that it wants to make
    that way are at hand, so it gets those."""
    fedml.core.mlops.get_fedml_args = lambda: MLOpsStore.mlops_args


class _MlopsSink:
    """Turns records into FedML's messages. Written to on one thread only (``BackgroundSink``'s)."""

    def __init__(self, server: bool, plan: Mapping[str, int]) -> None:
        self._server, self._plan = server, dict(plan)
        self._tell, self._running, self._finished, self._failed = _SERVER if server else _SILO
        self._phase, self._round = "", 0
        self._line: _Line | None = None
        self._next_try = 0.0
        if MLOpsStore.mlops_log_agent_config:
            self._connect()

    def write(self, stream: str, record: Record) -> None:
        """One record; lost while the platform does not say where its broker is."""
        if self._line is None and not self._ask_platform():
            return
        if stream == "rounds":
            self._one_round(record)
            return
        match record["event"]:
            case "started" | "resumed":
                if self._server:
                    mlops.log_round_info(sum(self._plan.values()), -1)  # -1 starts FedML's clock
                self._tell(self._running)
            case "phase":
                self._enter(record["phase"], record.get("done", 0))
            case "finished" | "stopped_early":
                self._enter("")
                self._tell(self._finished)
            case "failed":
                self._enter("")
                self._tell(self._failed)

    def _one_round(self, record: Record) -> None:
        """A silo's records hold figures of its own data: of those, only the phase is looked at."""
        phase = record["phase"]
        self._enter(phase)
        if self._server:
            self._round += phase in self._plan
            if phase in self._plan:
                mlops.log_round_info(sum(self._plan.values()), self._round - 1)
            figures = {name: record[name] for name in METRICS if name in record}
            mlops.log(dict(scalars(f"fedgmi/{phase}", figures)), step=max(self._round - 1, 0))
        self._tell(self._running)

    def _enter(self, phase: str, done: int = 0) -> None:
        """Phases follow each other: one event ends where the next begins."""
        if phase == self._phase:
            return
        if self._phase:
            mlops.event(f"fedgmi.{self._phase}", event_started=False)
        if phase:
            mlops.event(f"fedgmi.{phase}", event_started=True)
        if phase in self._plan:
            names = list(self._plan)
            self._round = done + sum(self._plan[name] for name in names[: names.index(phase)])
        self._phase = phase

    def _ask_platform(self) -> bool:
        """``fedml.init`` did not reach the platform: ask it again, now and then."""
        if time.monotonic() < self._next_try:
            return False
        self._next_try = time.monotonic() + ASK_AGAIN
        try:
            broker = MLOpsConfigs.fetch_mqtt_config()
        except Exception as error:  # whatever FedML makes of a platform that is not there
            log.warning("MLOps: the platform cannot be reached (%s); the run goes on without it", type(error).__name__)
            return False
        MLOpsStore.mlops_log_agent_config = {"mqtt_config": broker}
        self._connect()
        return True

    def _connect(self) -> None:
        """Put our connection where FedML would put its own, which blocks."""
        args = MLOpsStore.mlops_args
        line = _Line(MLOpsStore.mlops_log_agent_config["mqtt_config"])
        line.connect()
        MLOpsStore.mlops_metrics, MLOpsStore.mlops_event = MLOpsMetrics(), MLOpsProfilerEvent(args)
        for messenger in (MLOpsStore.mlops_metrics, MLOpsStore.mlops_event):
            messenger.set_messenger(line, args)
        self._line = MLOpsStore.mlops_log_mqtt_mgr = line

    def close(self) -> None:
        """Wait for the broker to confirm, for at most ``FAREWELL`` seconds."""
        if self._line is None:
            return
        missing = self._line.farewell(FAREWELL)
        if missing:
            log.warning("MLOps: the broker confirmed all but %d messages; the run itself is complete", missing)


class _Line(MqttManager):  # type: ignore[misc]
    """FedML's connection to its broker, without its waits: connecting, again too, and sending are paho's thread's.

    Args:
        broker: the platform's ``mqtt_config``.
    """

    def __init__(self, broker: Mapping[str, Any]) -> None:
        self._unconfirmed, self._change = 0, threading.Condition()
        super().__init__(
            broker["BROKER_HOST"], int(broker["BROKER_PORT"]), broker["MQTT_USER"], broker["MQTT_PWD"],
            int(broker["MQTT_KEEPALIVE"]), f"FedGMI_MLOps_{time.time_ns()}_{threading.get_ident()}",
        )  # fmt: skip
        self.add_published_listener(self._confirmed)

    def __del__(self) -> None:
        """FedML's own joins the thread, which may be waiting for a dead host."""

    def connect(self) -> None:
        """Start connecting; returns at once."""
        self._client.max_queued_messages_set(WAITING)
        self._client.connect_async(self._host, self._port, self.keepalive_time)
        self._client.loop_start()

    def check_connection(self) -> None:
        """FedML's own waits for 30 s and raises; here messages wait in paho's queue."""

    def send_message_json(self, topic: str, message: str, publish_single_message: bool = False) -> Any:
        """Queue a message. A connection for a single one, which waits for it, is never made."""
        with self._change:
            self._unconfirmed += 1
        return super().send_message_json(topic, message)

    def _confirmed(self, client: Any, obj: Any, mid: int) -> None:
        with self._change:
            self._unconfirmed -= 1
            self._change.notify_all()

    def farewell(self, seconds: float) -> int:
        """Wait until everything is confirmed or the time is over, and disconnect; how many messages are missing."""
        with self._change:
            self._change.wait_for(lambda: self._unconfirmed <= 0, seconds)
            missing = self._unconfirmed
        self.disconnect()
        return max(missing, 0)
