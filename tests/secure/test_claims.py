"""The table is whole, the document current, and what the README of ``secure`` claims about itself holds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from adversarial import ATTEMPTS, ROWS, from_silos, row
from harness import Drive, SessionAbortedEvent, SessionReleased, World, drop, inputs, tamper

from secure.messages import Abort, Piece, Release, Uploaded
from secure.types import Rules

ROOT = Path(__file__).parents[2]
SECURE = ROOT / "secure"


@pytest.fixture(scope="module")
def listing():
    """Rows and their tests, as a fresh process sees them."""
    code = (
        "import adversarial_table as t; o = t.collect(); print(t.document(o), end='');"
        "print('\\n@@' + ' '.join(k for k, v in o.tests.items() if v), end='')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rsplit("\n@@", 1)


@pytest.mark.slow
def test_every_row_has_a_test(listing):
    assert set(listing[1].split()) == {*ROWS, *ATTEMPTS}
    assert len(ATTEMPTS) >= 12


@pytest.mark.slow
def test_the_document_is_current(listing):
    written = (ROOT / "docs" / "adversarial.md").read_text()
    assert written == listing[0], "run: python tests/secure/adversarial_table.py --write"


def test_secure_imports_only_what_it_may():
    """Standard library, NumPy, cryptography and msgpack: read from the source, and seen in a fresh process.

    TenSEAL in its one room, which ``secure.api`` does not enter by itself.
    """
    common = {*sys.stdlib_module_names, "numpy", "cryptography", "msgpack", "secure"}
    for path in SECURE.rglob("*.py"):
        allowed = common | ({"tenseal"} if path.parent.name == "homomorphic" else set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            assert {name.split(".")[0] for name in names} <= allowed, path
    strangers = ("torch", "fedml", "fedgmi_fedml", "yaml", "tenseal")
    code = f"import secure.api, sys; print([m for m in {strangers} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_randomness_comes_from_the_operating_system():
    """No seeded generator anywhere in ``secure``: FedML seeds Python's and NumPy's alike on every party."""
    for path in SECURE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert "random" not in {alias.name for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert node.module != "random", path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                assert node.value.attr != "random", path  # np.random.…


def test_no_silo_input_reaches_a_log():
    for path in SECURE.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*(import logging|from logging|print\()", text, re.M) or path.name == "card.py", path


@row("altered-release")
@pytest.mark.parametrize("verified", [True, False])
def test_a_sum_of_the_servers_own_making(verified):
    """A step in one coordinate: noticed with verified sums; without them only beyond the bounds."""
    world = World(range(1, 7), rules=Rules(verified_sums=verified))

    def altered(step):
        def change(message):
            values = np.frombuffer(message.values, "<i4").copy()
            values[5] += step
            return type(message)(**{**vars(message), "values": values.tobytes()})

        return change

    run = Drive(world, world.params())
    run.on_send = tamper(Release, altered(1))
    run.go()
    ended = SessionAbortedEvent if verified else SessionReleased
    assert all(isinstance(event, ended) for event in run.outcome.values())
    run = Drive(world, world.params(attempt=1))
    run.on_send = tamper(Release, altered(1 << 30))
    run.go()
    assert all(isinstance(event, SessionAbortedEvent) for event in run.outcome.values())


@row("altered-release")
@pytest.mark.parametrize("factor", [0, 2, -1])
def test_a_sum_multiplied_by_the_server(factor):
    world = World(range(1, 7), rules=Rules(verified_sums=True))
    run = Drive(world, world.params())

    def change(message):
        values = (np.frombuffer(message.values, "<i4") * factor).astype("<i4")
        scalars = (np.frombuffer(message.scalars, "<i8") * factor).astype("<i8")
        return type(message)(**{**vars(message), "values": values.tobytes(), "scalars": scalars.tobytes()})

    run.on_send = tamper(Release, change)
    run.go()
    assert all(isinstance(event, SessionAbortedEvent) for event in run.outcome.values())


@row("unclipped-silo")
@pytest.mark.parametrize("clippers", [(3,), (3, 5)])
def test_clipped_counts_are_orders_of_magnitude(clippers):
    """37 clipped coordinates and 70 look alike; the server sees a sum of powers of ten."""
    shares = set()
    for count in (37, 70):
        world = World(range(1, 7))
        params = world.params()
        data = inputs(params)
        for vector in data[2].values():
            vector[:] = 0.0
        for silo in clippers:
            data[2][silo][:count] = 100.0
        shares.add(Drive(world, params, data=data).go().aggregate.clipped_share)
    assert len(shares) == 1
    assert shares.pop() == pytest.approx(100 * len(clippers) / (6 * 1533))


@row("abort-reasons")
def test_a_withheld_upload_says_nothing():
    """A silo whose vector is bad sends no word about it: it has dropped out, like one without a network."""
    silent, bad = [], []
    for spoil, out in ((False, silent), (True, bad)):
        world = World(range(1, 7))
        run = Drive(world, world.params())
        if spoil:
            run.vectors[4][3] = np.inf
            submit = run.silos[4].submit

            def refused(vector, metrics, submit=submit):
                with pytest.raises(Exception, match="NaN or infinity"):
                    submit(vector, metrics)
                return ()

            run.silos[4].submit = refused
        else:
            run.on_send = drop(Piece, silo=4)
            run.silos[4].submit = lambda vector, metrics: ()
        run.go()
        assert run.aggregate.survivors == (1, 2, 3, 5, 6)
        out.append([len(p) for s, _, p in run.sent if s == 4])
        assert not from_silos(run, Uploaded, 4)
        assert all("NaN" not in a.reason for a in from_silos(run, Abort))
    assert silent == bad
