"""The run in a sentence, in tiles, and against the other methods."""

from __future__ import annotations

from fedgmi_fedml.report.context import Context
from fedgmi_fedml.report.markup import Markup, figure, table, tag
from fedgmi_fedml.report.svg import drawing
from fedgmi_fedml.report.words import METHODS, SHORT, count, decimal, enumerated, method, percent, points, seconds

__all__ = ["comparison", "tiles", "verdict"]


def verdict(context: Context) -> str:
    """Two or three sentences: what ran, how good it is against what, and how well the mixture was found."""
    summary = context.summary
    who = []
    if summary.silos and summary.view != "silo":
        who.append(f"{count(summary.silos)} silos")
    if context.components:
        who.append(f"{context.components} components")
    if summary.rounds is not None:
        who.append(
            f"{count(summary.rounds)} rounds" + (f" in {seconds(summary.wall_seconds)}" if summary.wall_seconds else "")
        )
    first = ", ".join(who) + "." if who else ""
    return " ".join(part for part in (first, _accuracy(context), _mixture(context)) if part)


def _accuracy(context: Context) -> str:
    summary = context.summary
    own = summary.pooled_accuracy.get("fedgmi")
    others = [
        f"{percent(value)} with {SHORT[name]}"
        for name, value in summary.pooled_accuracy.items()
        if name in SHORT and name not in ("fedgmi", "oracle") and value is not None
    ]
    if own is not None:
        against = f", against {enumerated(others)}" if others else ""
        return f"Personalised predictions are right for {percent(own)} of all test samples{against}."
    if summary.personalised_accuracy is not None:
        where = "of this silo's test samples" if summary.view == "silo" else "of test samples, averaged over silos"
        return f"Personalised predictions are right for {percent(summary.personalised_accuracy)} {where}."
    return ""


def _mixture(context: Context) -> str:
    summary = context.summary
    parts = []
    if summary.alpha_mae is not None:
        parts.append(f"mixture proportions are off by {decimal(summary.alpha_mae, 4)} on average")
    if summary.partition_accuracy is not None:
        parts.append(f"{percent(summary.partition_accuracy)} of the samples are in their true component")
    if not parts:
        return ""
    text = " and ".join(parts)
    return text[0].upper() + text[1:] + "."


def tiles(context: Context) -> Markup | None:
    """The figures one looks for first."""
    summary = context.summary
    own = summary.pooled_accuracy.get("fedgmi")
    effective = None
    if summary.effective_components is not None:
        effective = f"{summary.effective_components:.2f} of {context.components}"
    upload = summary.secure.upload_bytes_per_parameter
    whose = "this silo" if summary.view == "silo" else "mean over silos"
    rate = percent(summary.misassignment_rate) if summary.partition_accuracy is None else None  # the truth says more
    found = [
        (percent(own), "of all test samples predicted right"),
        (percent(summary.personalised_accuracy), f"test accuracy, {whose}"),
        (decimal(summary.alpha_mae, 4), "mean error of the mixture proportions"),
        (percent(summary.partition_accuracy), "of samples in their true component"),
        (f"{points(summary.specialisation_gap)} points", "expert at home against away"),
        (effective, "components in use (effective number)"),
        (rate, "of samples expected in the wrong component"),
        (seconds(summary.wall_seconds), "wall time"),
        (None if upload is None else f"{upload:.2f} bytes", "uploaded per parameter and round"),
    ]
    shown = [
        tag("div", tag("b", value), tag("span", text), class_="tile")
        for value, text in found
        if value is not None and not value.startswith("–")
    ]
    return tag("div", *shown, class_="tiles") if shown else None


def comparison(context: Context, narrow: bool = False) -> Markup | None:
    """Pooled accuracy by method as bars from zero, with the difference to FedGMI in points."""
    known = {name: value for name, value in context.summary.pooled_accuracy.items() if value is not None}
    if len(known) < 2:
        return None
    order = sorted(known, key=lambda name: (-known[name], list(METHODS).index(name) if name in METHODS else 99))
    own = known.get("fedgmi")
    width, tall, left, room = (330.0 if narrow else 500.0), 34.0, 1.0, (208.0 if narrow else 380.0)
    bars: list[Markup] = []
    for index, name in enumerate(order):
        top = index * (tall + 16)
        length = room * max(0.0, min(1.0, known[name]))
        colour = {"fedgmi": "f-c0", "oracle": "ceiling"}.get(name, "cell")
        away = "" if own is None or name == "fedgmi" else f"  ({points(known[name] - own)})"
        style = None if colour != "cell" else "--v:.3"
        bars += [
            tag("text", method(name), x=left, y=top + 12, class_="lab"),
            tag("rect", x=left, y=top + 17, width=f"{length:.1f}", height=tall - 18, rx=2, class_=colour, style=style),
            tag("text", f"{percent(known[name])}{away}", x=f"{left + length + 7:.1f}", y=top + 30, class_="val"),
        ]
    title = "Against other methods"
    text = "; ".join(f"{method(name)} {percent(known[name])}" for name in order)
    picture = drawing(width, len(order) * (tall + 16), title, text, *bars)
    rows = [[method(name), percent(known[name]), "" if own is None else points(known[name] - own)] for name in order]
    note = "Accuracy over all silos' test samples together; in brackets, points away from FedGMI."
    return figure(title, picture, note, table(["Method", "Accuracy", "Points away"], rows))
