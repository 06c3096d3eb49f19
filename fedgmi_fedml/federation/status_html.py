"""The status page: where the run stands first, then silos, training, cost, protection and what happened.

Rendered on the server from one snapshot; every text in it is escaped. Charts and tables are the report's own.
"""

from __future__ import annotations

import numpy as np

from fedgmi_fedml.federation.status_assets import REFRESH_SECONDS
from fedgmi_fedml.federation.status_snapshot import SiloStatus, Snapshot
from fedgmi_fedml.federation.status_words import RUN_STATES, SILO_STATES, event_text, round_name
from fedgmi_fedml.report.components import separability_figure
from fedgmi_fedml.report.context import Context
from fedgmi_fedml.report.curves import curves
from fedgmi_fedml.report.data import ReportData
from fedgmi_fedml.report.markup import Markup, join, table, tag
from fedgmi_fedml.report.protection import headline, protection
from fedgmi_fedml.report.words import count, decimal, duration, percent, phase, size
from fedgmi_fedml.summary import RunSummary

__all__ = ["message_page", "status_page"]

MOST_COMPONENTS_SHOWN = 16
MOST_TILES = 5
MOST_EVENTS_SHOWN = 12


def status_page(snapshot: Snapshot, now: float) -> str:
    """The whole document.

    Args:
        now: the present moment on the snapshot's clock, seconds.
    """
    name = snapshot.federation or snapshot.run_name or "FedGMI run"
    context = _context(snapshot)
    sections = [
        ("Silos", _silos(snapshot, now)),
        ("Training", _training(snapshot, context)),
        ("What happened", _events(snapshot)),
        ("Bytes and sums", _cost(snapshot)),
        ("Protection in force", protection(context)),
    ]
    body = [tag("section", tag("h2", heading), content) for heading, content in sections if content is not None]
    live = tag("div", _header(snapshot, name, context, now), tag("main", *body), id="live")
    gone = tag("div", id="gone", role="status")  # the script's, for what it alone can know
    footer = tag("footer", "Read-only; holds only what the server may know. ", _links())
    return _document(f"{_title(snapshot)} · {name}", gone, live, footer, refresh=not snapshot.over)


def message_page(title: str, *paragraphs: object) -> str:
    """A small page for people who cannot see the status (yet)."""
    return _document(title, tag("header", tag("h1", title), *(tag("p", text) for text in paragraphs)), refresh=False)


def _document(title: str, *body: object, refresh: bool) -> str:
    reload = tag("meta", http_equiv="refresh", content=str(REFRESH_SECONDS))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="robots", content="noindex"),
        tag("title", title),
        Markup('<link rel="stylesheet" href="/status.css"/>'),
        tag("noscript", reload) if refresh else None,
        tag("script", src="/status.js", defer="defer") if refresh else None,
    )
    return "<!DOCTYPE html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n"


def _links() -> Markup:
    links = [tag("a", text, href=href) for text, href in (("JSON", "/status.json"), ("Prometheus", "/metrics"))]
    return join("As ", links[0], ", for ", links[1], ".")


def _title(snapshot: Snapshot) -> str:
    present = snapshot.phase_status(snapshot.phase)
    if snapshot.state == "running" and present is not None and present.total:
        return f"{phase(present.name)} {present.done}/{present.total}"
    return RUN_STATES[snapshot.state][0]


def _context(snapshot: Snapshot) -> Context:
    """The snapshot as the report's figures want it."""
    matrix = snapshot.separability
    data = ReportData(separability=np.array(matrix, dtype=np.float64) if len(matrix) > 1 else None)
    summary = RunSummary(
        view="server",
        components=snapshot.components or None,
        silos=len(snapshot.silos),
        secure=snapshot.protection,
    )
    return Context(summary, data, [point for item in snapshot.phases for point in item.points])


# ---- header ----------------------------------------------------------------------------------------------------------


def _header(snapshot: Snapshot, name: str, context: Context, now: float) -> Markup:
    words, kind = RUN_STATES[snapshot.state]
    sentence, how = headline(snapshot.protection, False)
    return tag(
        "header",
        tag("p", "FedGMI server: read-only status", class_="kind"),
        tag("h1", name, " ", tag("span", words, class_=f"badge {kind}")),
        tag("p", _about(snapshot), class_="stage wrap"),
        tag("div", tag("p", tag("strong", sentence)), class_="note bad") if how == "bad" else None,
        _ending(snapshot),
        _phases(snapshot),
        _tiles(snapshot, now),
    )


def _about(snapshot: Snapshot) -> Markup:
    """The run's id, and what is waited for."""
    stage = snapshot.stage[:1].upper() + snapshot.stage[1:]
    run = snapshot.run_id or snapshot.run_name
    return join(tag("span", "run ", tag("code", run)) if run else None, " · " if run and stage else None, stage)


def _ending(snapshot: Snapshot) -> Markup | None:
    if snapshot.state == "failed":
        text = f"The run ended early, with the last whole models kept: {snapshot.reason or 'see the log of the server'}"
        return tag("div", tag("p", text), class_="note bad")
    if snapshot.state == "interrupted":
        return tag("div", tag("p", "The server was stopped. Started again, it goes on."), class_="note warn")
    return None


def _phases(snapshot: Snapshot) -> Markup | None:
    items = []
    for item in snapshot.phases:
        if not item.total:
            continue
        here = item.name == snapshot.phase and snapshot.state == "running"
        bar = tag("progress", value=item.done, max=item.total, aria_label=f"{phase(item.name)}, rounds done")
        of = tag("span", f"{count(item.done)} / {count(item.total)}", class_="of")
        items.append(tag("li", tag("span", phase(item.name)), " ", of, bar, class_="here" if here else None))
    return tag("ol", *items, class_="phases") if items else None


def _tiles(snapshot: Snapshot, now: float) -> Markup:
    left = snapshot.seconds_left(now)
    tiles = [
        (f"{snapshot.present} of {len(snapshot.silos)}", "silos in"),
        (duration(max(0.0, (snapshot.ended or now) - snapshot.began)), "took" if snapshot.over else "elapsed"),
    ]
    if left is not None:
        tiles.append((f"≈ {duration(left)}", "left"))
    for name, words in (("validation_accuracy", "validation accuracy"), ("test_accuracy", "test accuracy")):
        if name in snapshot.latest:
            value, where, number = snapshot.latest[name]
            tiles.append((percent(value), f"{words}, {round_name((where, number))}"))
    if snapshot.best is not None and len(tiles) < MOST_TILES:
        tiles.append((percent(snapshot.best[0]), f"best validation, {round_name(snapshot.best[1:])}"))
    return tag("div", *(tag("div", tag("b", value), " ", tag("span", words), class_="tile") for value, words in tiles),
               class_="tiles")  # fmt: skip


# ---- sections --------------------------------------------------------------------------------------------------------


def _silos(snapshot: Snapshot, now: float) -> Markup | None:
    if not snapshot.silos:
        return None
    rows = [_silo(silo, now, snapshot.over) for silo in snapshot.silos]
    return table(["", "Silo", "State", "Last message"], rows, kind="full")


def _silo(silo: SiloStatus, now: float, over: bool) -> list[object]:
    words, kind = SILO_STATES[silo.state]
    state = tag("span", words + (", ready" if silo.ready and not over else ""), class_=f"state {kind}")
    notes: list[object] = [silo.reason] if silo.reason else []
    if silo.failures:
        where = round_name(silo.failed_in) + (f", {count(silo.failures)} failures in all" if silo.failures > 1 else "")
        notes.append(join(tag("code", silo.error or "error"), f" in {where}"))
    if silo.dropped:
        sums = "1 sum," if silo.dropped == 1 else f"{count(silo.dropped)} sums, last"
        notes.append(f"missing from {sums} {round_name(silo.dropped_in)}")
    ago = None if silo.seen is None else f"{duration(max(0.0, now - silo.seen))} ago"
    seen = "–" if ago is None else tag("span", ago, class_="when")
    about = [tag("div", note, class_="small wrap") for note in notes]
    return [silo.id, silo.name or "–", join(state, *about), seen]


def _training(snapshot: Snapshot, context: Context) -> Markup | None:
    figures = curves(context)
    if 1 < len(snapshot.separability) <= MOST_COMPONENTS_SHOWN:
        apart = separability_figure(context)
        figures += [apart] if apart is not None else []
    gates = _gates(snapshot)
    if not figures and gates is None:
        return None
    thinned = [item for item in snapshot.phases if item.stride > 1]
    note = f"One round in {max(item.stride for item in thinned)} is drawn, and the last." if thinned else None
    return join(gates, tag("div", *figures, class_="grid2") if figures else None,
                tag("p", note, class_="small") if note else None)  # fmt: skip


def _gates(snapshot: Snapshot) -> Markup | None:
    closed = [f"component {j}" for j, is_open in enumerate(snapshot.is_open) if not is_open]
    if not snapshot.is_open:
        return None
    if not closed:
        return tag("p", "All components were open in the last sum.")
    return tag("p", f"Closed in the last sum, because too few silos hold it: {', '.join(closed)}.")


def _cost(snapshot: Snapshot) -> Markup | None:
    used = [item for item in snapshot.phases if item.counted]
    if not used:
        return None
    rows = [
        [phase(p.name), count(p.counted), duration(p.seconds), size(p.bytes_up), size(p.bytes_down), count(p.messages)]
        for p in used
    ]
    head = ["Phase", "Rounds", "Time", "Silos to server", "Server to silos", "Messages"]
    sums = [
        ["Secure sessions begun", count(snapshot.sessions)],
        ["Discarded, with nothing revealed", count(snapshot.aborted)],
        ["Rounds without a silo of their cohort", count(snapshot.partial)],
        ["Largest clipped share", percent(snapshot.clipped_share, 3)],
    ]
    if "beta" in snapshot.latest and snapshot.phase == "warmup":
        sums.append(["Sharpness β of the warm-up", decimal(snapshot.latest["beta"][0], 2)])
    return join(table(head, rows, kind="full"), table(["", ""], sums))


def _events(snapshot: Snapshot) -> Markup | None:
    if not snapshot.events:
        return None
    names = {silo.id: silo.name for silo in snapshot.silos}
    today = str(snapshot.events[-1].get("time", ""))[:10]
    rows = [
        [tag("span", _when(str(event.get("time", "")), today), class_="when"), event_text(event, names)]
        for event in reversed(snapshot.events)
    ]
    first, rest = rows[:MOST_EVENTS_SHOWN], rows[MOST_EVENTS_SHOWN:]
    head = [f"UTC, {today}", "Newest first"]
    more = tag("details", tag("summary", f"{len(rest)} earlier"), table(head, rest, kind="log")) if rest else None
    return join(table(head, first, kind="log"), more)


def _when(time: str, today: str) -> str:
    """The time of day, with the date where it is another."""
    return time[11:19] if time[:10] == today else f"{time[:10]} {time[11:19]}"
