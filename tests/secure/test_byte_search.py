"""Planted patterns sought in every byte that reaches the server, in its objects, its memory, its disk and its logs.

The same search is run on back-end ``none``, where it must find them: a search that finds nothing there proves nothing.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
from adversarial import from_silos, reachable, row, until
from harness import SERVER, Drive, World, inputs
from remote_server import RemoteServer

from secure.errors import SecureError
from secure.journal import Journal
from secure.messages import Consent, Piece, Release, Reveal, Uploaded
from secure.types import Block, Rules, StatisticSpec, VectorSpec

SPEC = VectorSpec(
    2,
    (Block("a", 900, 8.0, 0), Block("b", 700, 8.0, 1)),
    (),
    (StatisticSpec("loss.0", 100.0, 1e-6), StatisticSpec("loss.1", 100.0, 1e-6)),
)
VICTIM = 3
COUNTS = (397_081.0, 284_693.0)
STATISTICS = (61.803398, -14.142135)
PROPORTIONS = (0.5360938, 0.4639062)
PATH = "ward-17-oncology/patients_2031.csv"
LABELS = ("carcinoma_in_situ", "adenoma_benign")


def planted_run(backend="masked", spool_dir=None, journals=None):
    """A session in which silo 3 holds everything that is sought."""
    world = World(range(1, 8), rules=Rules(max_drops=1), backends=("masked", "none"))
    params = world.params(spec=SPEC, backend=backend)
    samples, statistics, vectors, metrics = inputs(params)
    samples[VICTIM], statistics[VICTIM] = COUNTS, STATISTICS
    vectors[VICTIM][100:132] = pattern()
    vectors[VICTIM][1000:1032] = pattern()
    run = Drive(world, params, data=(samples, statistics, vectors, metrics), spool_dir=spool_dir, journals=journals)
    return run


def pattern():
    return (np.arange(1, 33) * 0.0011 - 0.013).astype(np.float32)


def encodings(number):
    """A number as a party might write it, four bytes or more."""
    found = {str(number).encode(), struct.pack("<d", number), struct.pack(">d", number)}
    if float(number).is_integer():
        whole = int(number)
        found |= {whole.to_bytes(n, order) for n in (4, 8) for order in ("little", "big")}
        found.add(struct.pack("<qI", 1, whole))  # an ``int`` of CPython: one digit of 30 bits
        found |= {str(whole).encode(), f"{whole:x}".encode(), struct.pack("<f", number), struct.pack(">f", number)}
    return found


def needles(run):
    """Name → byte strings that must not be found."""
    classes, weights, _, _, opened = oracle.totals(run.params, run.samples, run.statistics)
    share = oracle.shares(run.params, classes, weights, opened)[VICTIM]
    vector = run.vectors[VICTIM]
    steps = oracle.quantised(run.params, vector, share)[0]
    unweighted = oracle.quantised(run.params, vector, (1.0, 1.0))[0]
    found = {
        "float32 weights": {vector[100:104].tobytes(), vector[1010:1014].tobytes()},
        "float64 weights": {vector[100:102].astype(float).tobytes()},
        "big-endian weights": {vector[100:104].astype(">f4").tobytes()},
        "fixed point": {steps[100:103].astype("<i4").tobytes(), unweighted[100:103].astype("<i4").tobytes()},
        "fixed point, 64 bits": {steps[100:103].astype("<i8").tobytes()},
        "text": {PATH.encode(), Path(PATH).name.encode(), *(label.encode() for label in LABELS)},
    }
    for j in range(2):
        found[f"count {j}"] = encodings(COUNTS[j])
        found[f"class {j}"] = encodings(classes[VICTIM][j])
        found[f"total {j}"] = encodings(weights[j])
        found[f"share {j}"] = encodings(share[j])
        found[f"statistic {j}"] = encodings(STATISTICS[j]) | encodings(round(STATISTICS[j] * 1e6) + 100_000_000)
        found[f"proportion {j}"] = encodings(PROPORTIONS[j])
    return found


def hits(data, wanted):
    """Names of the patterns found in a haystack."""
    return {name for name, forms in wanted.items() if any(form in data for form in forms)}


def memory_hits(data, wanted):
    """``hits`` in tens of megabytes: runs of zeros shortened, and only forms too long to turn up by chance."""
    shorter = re.sub(rb"\x00{64,}", bytes(32), data)
    return hits(shorter, {name: {form for form in forms if len(form) > 6} for name, forms in wanted.items()})


def object_hits(roots, wanted, run):
    """Names of the patterns found among reachable objects: buffers, strings and numbers."""
    classes, weights, *_ = oracle.totals(run.params, run.samples, run.statistics)
    numbers = {}
    for j in range(2):
        numbers |= {COUNTS[j]: f"count {j}", float(classes[VICTIM][j]): f"class {j}", float(weights[j]): f"total {j}"}
        numbers |= {STATISTICS[j]: f"statistic {j}"}
    found = set()
    for item in reachable(*roots):
        if isinstance(item, bytes | bytearray | memoryview):
            found |= hits(bytes(item), wanted)
        elif isinstance(item, np.ndarray):
            found |= hits(item.tobytes(), wanted)
        elif isinstance(item, str):
            found |= hits(item.encode(), wanted)
        elif isinstance(item, int | float) and float(item) in numbers:
            found.add(numbers[float(item)])
    return found


def spooled(run):
    """What the server has on its disk."""
    spool = run.server._intake.inbox.spool
    return os.pread(spool._file.fileno(), spool._size, 0)


@row("planted")
def test_absent_from_all_traffic_logs_and_printed_forms(caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    world_journals = {silo: Journal(tmp_path / PATH / str(silo)) for silo in range(1, 8)}
    run = planted_run(journals=world_journals)
    until(run, Consent)
    printed = repr((run.server, vars(run.server), run.silos, run.sent[-1], run.totals, run.queue)) + caplog.text
    run.settle()
    wanted = needles(run)
    traffic = b"".join(payload for *_, payload in run.sent)
    assert len(traffic) > 100_000
    assert hits(traffic, wanted) == set()
    assert hits(printed.encode("unicode_escape"), wanted) == set()
    assert run.aggregate.complete


@row("planted")
@pytest.mark.parametrize("stage", [Uploaded, Consent, Release])
def test_absent_from_the_servers_objects_and_disk(stage, tmp_path):
    """The whole graph of what the server's session can reach, at three moments."""
    run = planted_run(spool_dir=tmp_path)
    wanted = needles(run)
    if stage is Release:
        run.go()
        assert run.server.done
    else:
        until(run, stage)
        assert hits(spooled(run), wanted) == set()
    assert object_hits([run.server, vars(run.server)], wanted, run) == set()


@row("planted")
def test_the_search_finds_everything_where_nothing_is_hidden(tmp_path):
    """Back-end none: every kind of pattern turns up in traffic, objects or on the disk."""
    run = planted_run("none", spool_dir=tmp_path)
    spools, wanted = [], needles(run)
    run.from_server(run.server.start())
    while run.step():
        inbox = getattr(run.server, "_inbox", None)
        if inbox is not None and not run.server.done:
            spool = inbox.spool
            spools = [os.pread(spool._file.fileno(), spool._size, 0)]
    traffic = b"".join(payload for *_, payload in run.sent)
    assert {"float32 weights", "class 0", "class 1", "statistic 0", "total 0"} <= hits(traffic, wanted)
    assert not spools or "float32 weights" in hits(spools[0], wanted)
    assert {"class 0", "total 0"} <= object_hits([run.server, vars(run.server), run.sent], wanted, run)


@row("planted")
def test_the_search_finds_each_pattern_when_planted_in_a_message():
    run = planted_run()
    wanted = needles(run)
    for name, forms in wanted.items():
        for form in forms:
            assert name in hits(os.urandom(50) + form + os.urandom(50), wanted)
    assert object_hits([{"x": [COUNTS[0]]}], wanted, run) == {"count 0"}
    assert object_hits([np.concatenate([np.zeros(3, np.float32), pattern()])], wanted, run) == {"float32 weights"}


@row("planted")
def test_the_search_finds_a_silos_own_secrets():
    """The walk over objects reaches what a silo holds while its session lives, and nothing of it after the end."""
    run = planted_run()
    while not (run.totals and VICTIM in run.totals):
        if not run.step() and not run.sent:
            run.from_server(run.server.start())
    wanted = needles(run)
    assert {"total 0", "total 1"} <= object_hits([run.silos[VICTIM]], wanted, run)
    run.settle()
    assert run.silos[VICTIM].done
    assert object_hits([run.silos[VICTIM]], wanted, run) & {"class 0", "count 0", "statistic 0"} == set()


@row("planted", "abort-reasons")
def test_reasons_of_aborts_carry_no_path_count_or_setting(tmp_path, caplog):
    """A journal that cannot be written: its path stays on the silo."""
    caplog.set_level(logging.DEBUG)
    journals = {silo: Journal(tmp_path / PATH / str(silo)) for silo in range(1, 8)}
    run = planted_run(journals=journals)
    for path in (tmp_path / PATH / str(VICTIM)).rglob("*.json"):
        path.write_text("{}")
    run.go()
    assert PATH in run.outcome[VICTIM].reason  # for the silo's admin
    wanted = needles(run)
    assert hits(b"".join(payload for *_, payload in run.sent), wanted) == set()
    assert hits(repr(run.server.complaints).encode(), wanted) == set()
    assert hits(caplog.text.encode(), wanted) == set()
    run = planted_run()
    run.vectors[VICTIM][105] = np.nan
    submit = run.silos[VICTIM].submit

    def refused(vector, metrics):
        with pytest.raises(SecureError) as caught:
            submit(vector, metrics)
        assert hits(str(caught.value).encode(), needles(run)) == set()
        return ()

    run.silos[VICTIM].submit = refused
    run.go()
    assert VICTIM not in run.aggregate.survivors


@row("planted")
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/<pid>/mem")
@pytest.mark.parametrize("backend", ["masked", "none"])
def test_absent_from_the_memory_of_the_servers_process(backend, tmp_path):
    """Read before the unmasking and after the end; with back-end none the same search must find the patterns."""
    run = planted_run(backend)
    wanted = needles(run)
    run.server = RemoteServer(backend, SPEC, tmp_path)
    seen = set()
    try:
        run.from_server(run.server.start())
        try:
            before = run.server.memory()
        except PermissionError:
            pytest.skip("this system lets no process read another one's memory")
        assert len(before) > 1_000_000
        assert memory_hits(before, wanted) == set(), "a pattern that is there by itself proves nothing"
        milestones = [lambda: len(run.bytes_of(Piece, VICTIM)) > 1, lambda: run.bytes_of(Reveal)]
        while run.step():
            if milestones and milestones[0]():
                milestones.pop(0)
                seen |= memory_hits(run.server.memory(), wanted)
        assert run.server.done
        seen |= memory_hits(run.server.memory(), wanted)
    finally:
        run.server.close()
    if backend == "masked":
        assert seen == set()
    else:
        assert {"float32 weights", "class 0", "class 1", "statistic 0"} <= seen


@row("planted")
def test_uploads_show_no_structure():
    """Masked pieces of a constant vector: bytes uniform, and no two silos' words related."""
    run = planted_run()
    for silo in run.vectors:
        run.vectors[silo][:] = 0.001
    run.go()
    words = {
        silo: np.frombuffer(b"".join(bytes(p.data) for p in from_silos(run, Piece, silo))[: 4 * SPEC.length], "<u4")
        for silo in run.params.cohort
    }
    for silo, own in words.items():
        counts = np.bincount(np.frombuffer(own.tobytes(), np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 400
        for other in range(1, silo):
            for mixed in (own - words[other], own + words[other], own ^ words[other]):
                assert len(np.unique(mixed)) > 0.99 * len(mixed)
    assert SERVER not in words
