"""Training as curves: losses per component, accuracies, the mixture's error and drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgmi_fedml.report.context import Context, bands_of
from fedgmi_fedml.report.markup import Markup, figure, table
from fedgmi_fedml.report.svg import Series, line_chart
from fedgmi_fedml.report.words import decimal, method, percent

__all__ = ["curves"]

Records = Sequence[Mapping[str, Any]]


def _scalar(records: Records, name: str) -> list[float | None]:
    return [record.get(name) for record in records]


def _entry(records: Records, name: str, index: int) -> list[float | None]:
    out: list[float | None] = []
    for record in records:
        values = record.get(name)
        out.append(values[index] if isinstance(values, list) and index < len(values) else None)
    return out


def _per_component(records: Records, name: str) -> list[Series]:
    """One line for each entry of a vector of figures."""
    width = max((len(record[name]) for record in records if isinstance(record.get(name), list)), default=0)
    lines = [Series(f"component {j}", _entry(records, name, j), f"c{j % 8}") for j in range(width)]
    return [line for line in lines if any(value is not None for value in line.values)]


def _cut(records: Records, lines: Sequence[Series]) -> tuple[Records, list[Series]]:
    """Leave out the phases in which none of the lines has a value."""
    used = {records[i].get("phase") for line in lines for i, value in enumerate(line.values) if value is not None}
    kept = [i for i, record in enumerate(records) if record.get("phase") in used]
    cut = [Series(line.label, [line.values[i] for i in kept], line.colour) for line in lines]
    return [records[i] for i in kept], cut


def _chart(
    title: str, note: str, records: Records, lines: Sequence[Series], *, scale: str = "linear", best: int | None = None
) -> Markup | None:
    """One figure, or ``None`` when no line has a value."""
    known = [line for line in lines if any(value is not None for value in line.values)]
    if not known:
        return None
    shown, known = _cut(records, known)
    mark = None
    for position, record in enumerate(shown):
        if best is not None and record.get("phase") == "rounds" and record.get("round") == best:
            mark = (position, "best kept")
    show = percent if scale == "percent" else decimal
    rows = [
        [f"{record.get('phase')} {int(record.get('round', 0)) + 1}", *(show(line.values[i]) for line in known)]
        for i, record in enumerate(shown)
    ]
    ends = "; ".join(f"{line.label} ends at {show(_final(line))}" for line in known)
    picture = line_chart(title, f"{len(shown)} rounds. {ends}.", known, bands_of(shown), scale=scale, mark=mark)
    return figure(title, picture, note, table(["Round", *(line.label for line in known)], rows))


def _final(line: Series) -> float | None:
    return next((value for value in reversed(line.values) if value is not None), None)


def _accuracy_lines(context: Context, records: Records) -> list[Series]:
    """Test accuracy of this method, and of every other that left rounds of its own, by number of rounds done."""
    lines = [
        Series("test", _scalar(records, "test_accuracy"), "c0"),
        Series("validation", _scalar(records, "validation_accuracy"), "c5"),
    ]
    first = next((i for i, record in enumerate(records) if record.get("phase") == "rounds"), 0)
    for index, name in enumerate(context.methods):
        own = [record for record in context.rounds(name) if record.get("phase") == "rounds"]
        values = [None] * first + _scalar(own, "test_accuracy")
        padded = (values + [None] * len(records))[: len(records)]
        lines.append(Series(method(name).split(" (")[0], padded, f"c{1 + index}" if index < 4 else "c7"))
    return lines


def curves(context: Context) -> list[Markup]:
    """All figures of the training for which there are values, in reading order."""
    records = context.rounds()
    best = context.summary.best_round
    candidates = [record for record in records if record.get("phase") == "candidates"]
    cohorts = [Series(line.label.replace("component", "cohort"), line.values, line.colour) for line in
               _per_component(candidates, "candidate_loss")]  # fmt: skip
    mixture = [
        Series("error", _scalar(records, "alpha_mae"), "c4"),
        Series("drift", _scalar(records, "alpha_drift"), "c0"),
    ]
    partition = [
        Series("right", _scalar(records, "partition_accuracy"), "c2"),
        Series("confidence", _scalar(records, "confidence"), "c3"),
    ]
    truth = any(value is not None for value in partition[0].values)
    whose = "This silo's own" if context.summary.view == "silo" else "Mean over silos"
    found = [
        _chart("Accuracy of the personalised prediction", f"{whose}, on data that training never saw.",
               records, _accuracy_lines(context, records), scale="percent", best=best),
        _chart("VAE loss", "Negative ELBO in nats per sample: how well each component's VAE describes its samples.",
               records, _per_component(records, "vae_loss"), best=best),
        _chart("Expert loss", "Cross-entropy in nats per sample, each expert on its own component's samples.",
               records, _per_component(records, "expert_loss"), best=best),
        _chart("Mixture proportions: error and drift",
               "Error against the truth, and how far the estimates moved since the round before. Logarithmic.",
               records, mixture, scale="log"),
        _chart("Samples in the right component, and the gate's confidence" if truth else "Confidence of the gate",
               "Mean largest responsibility. Far above the share of samples that are right, it is too sure.",
               records, partition, scale="percent"),
        _chart("Share of the samples in each component", "A component near zero is idle; one near 100 % has won all.",
               records, _per_component(records, "component_weight"), scale="percent"),
        _chart("Candidate VAEs", "Loss of every cohort's candidate in nats per sample; a jump is the next draw.",
               candidates, cohorts),
    ]  # fmt: skip
    return [chart for chart in found if chart is not None]
