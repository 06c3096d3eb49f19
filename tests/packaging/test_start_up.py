"""Importing the packages is cheap and quiet: no heavy module, no thread, no socket (field report A6)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Runs in a fresh interpreter. An audit hook hears every socket and process made by anybody, in C or in Python, from the
# first import on; threads have an audit event from Python 3.12 only, so their one primitive is wrapped.
PROBE = """
import _thread, importlib, json, sys, threading
seen = []
NOISY = ("socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.fork",
         "os.posix_spawn")
sys.addaudithook(lambda event, args: seen.append(event) if event in NOISY else None)
start = _thread.start_new_thread
def heard(*args):
    seen.append("thread")
    return start(*args)
_thread.start_new_thread = threading._start_new_thread = heard
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps({"modules": sorted({m.split(".")[0] for m in sys.modules}), "events": seen}))
"""
HEAVY = {"torch", "torchvision", "fedml", "tenseal", "sklearn", "scipy", "grpc", "pandas", "matplotlib", "onnx"}


def imported(*modules: str) -> dict[str, list[str]]:
    """Import the modules in a fresh interpreter: the top-level names in sys.modules, and what the hook heard."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *modules], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_package_imports_nothing_heavy_and_stays_quiet() -> None:
    found = imported("fedgmi_fedml")
    assert not HEAVY & set(found["modules"])
    assert "secure" not in found["modules"]
    assert found["events"] == []


def test_secure_knows_nothing_of_learning_and_stays_quiet() -> None:
    found = imported("secure.api", "secure.types", "secure.errors")
    assert not (HEAVY | {"fedgmi_fedml"}) & set(found["modules"])
    assert found["events"] == []


@pytest.mark.parametrize(
    ("code", "event"),
    [
        ("import socket; socket.socket()", "socket.__new__"),
        ("import threading; threading.Thread(target=int).start()", "thread"),
    ],
)
def test_the_probe_can_hear(code: str, event: str) -> None:
    """The two tests above are worth something: the hook hears a socket and a thread when there is one."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.replace("for name in", code + "\nfor name in")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert event in json.loads(done.stdout)["events"]


def test_versions_need_no_import_of_anything_else() -> None:
    import fedgmi_fedml

    major, minor, patch = fedgmi_fedml.__version__.split(".")
    assert all(part.isdigit() for part in (major, minor, patch))
    assert isinstance(fedgmi_fedml.WIRE_VERSION, int)
    assert fedgmi_fedml.WIRE_VERSION >= 1


def test_an_unknown_name_is_an_attribute_error() -> None:
    import fedgmi_fedml

    with pytest.raises(AttributeError, match="no attribute 'sumulate'"):
        _ = fedgmi_fedml.sumulate


@pytest.mark.slow
def test_every_name_that_the_package_offers_is_there() -> None:
    code = "import fedgmi_fedml as f; print([getattr(f, n) for n in dir(f) if not n.startswith('__')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
