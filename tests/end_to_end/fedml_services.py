"""What FedML's platform consists of, on loopback, for the tests: an MQTT broker, and whoever listens to it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

from loopback import free_port, until

MOSQUITTO = shutil.which("mosquitto", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))
"""Tests that start it carry ``needs_program("mosquitto")``."""


class Broker:
    """Mosquitto on a free port of loopback."""

    def __init__(self, folder: Path):
        self.port = free_port()
        settings = folder / "mosquitto.conf"
        settings.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
        self.process = subprocess.Popen(
            [str(MOSQUITTO), "-c", str(settings)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until(self._open, why=lambda: "mosquitto does not listen")

    def _open(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def config(self) -> dict[str, object]:
        """FedML's ``mqtt_config``."""
        return mqtt_config(self.port)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def mqtt_config(port: int) -> dict[str, object]:
    return {"BROKER_HOST": "127.0.0.1", "BROKER_PORT": port, "MQTT_USER": "u", "MQTT_PWD": "p", "MQTT_KEEPALIVE": 60}


class Listener:
    """Everything that reaches a broker, in order: (topic, value)."""

    def __init__(self, port: int):
        import paho.mqtt.client as mqtt

        self.heard: list[tuple[str, object]] = []
        ready = threading.Event()
        self._client = mqtt.Client(client_id="listener")
        self._client.on_connect = lambda client, *rest: client.subscribe("#", qos=2)
        self._client.on_subscribe = lambda *rest: ready.set()
        self._client.on_message = lambda client, data, message: self.heard.append(
            (message.topic, _value(message.payload))
        )
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert ready.wait(10)

    def on(self, topic: str) -> list[object]:
        """What came on topics that begin with ``topic``."""
        return [value for name, value in list(self.heard) if name.startswith(topic)]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def _value(payload: bytes) -> object:
    try:
        return json.loads(payload)
    except ValueError:
        return payload


class MutePort:
    """Accepts connections and never says a word."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.accepted.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()
        for line in self.accepted:
            line.close()
