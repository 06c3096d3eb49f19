"""What protected the silos in this run, in words: what was in force, who could learn what, and what is not promised."""

from __future__ import annotations

from fedgmi_fedml.report.context import Context
from fedgmi_fedml.report.markup import Markup, join, table, tag
from fedgmi_fedml.report.words import count, decimal, enumerated, percent
from fedgmi_fedml.summary import SecureSummary

__all__ = ["headline", "protection"]

NAMES = {
    "masked": "masked secure aggregation",
    "homomorphic": "homomorphic secure aggregation",
    "none": "none (updates in the clear)",
}
# (words, kind): green for what nobody learns, red for what nobody should, plain for what the method lives on
_NEVER, _MEANT, _EXPOSED = ("never", "no"), ("yes", "meant"), ("yes", "yes")


def headline(secure: SecureSummary, simulated: bool) -> tuple[str, str]:
    """One sentence on what was in force, and how good that is (``good``, ``bad`` or ``warn``)."""
    if secure.backend is None:
        return "Which protection was in force was not recorded.", "warn"
    if secure.backend == "none":
        return (
            "No protection was in force. Back-end “none” sends every silo's update and sample counts to the server in "
            "the clear; it exists for measurement, never for data that matter.",
            "bad",
        )
    how = {
        "masked": "The server received masked vectors only, and could open nothing but their sum over the cohort.",
        "homomorphic": "The server received encrypted vectors only, added them without reading them, and held no key.",
    }[secure.backend]
    played = (
        " One machine played all parties here, running the same protocol code as a deployment." if simulated else ""
    )
    return how + played, "good"


def _who(secure: SecureSummary) -> list[tuple[str, tuple[str, str], tuple[str, str]]]:
    """(what, other silos, server), each as (words, kind)."""
    clear = secure.backend == "none"
    server: tuple[str, str] = _EXPOSED if clear else _NEVER
    sums = _MEANT if secure.backend != "homomorphic" else ("not unless a silo sides with it", "part")
    return [
        ("A silo's samples, labels and file names", _NEVER, _NEVER),
        ("A silo's own model update", _NEVER, server),
        ("A silo's exact sample counts and mixture proportions", _NEVER, ("the counts", "yes") if clear else _NEVER),
        (
            "A silo's size class, and which components it holds",
            ("at most that, over many rounds with changing cohorts", "part"),
            server,
        ),
        ("Total weight of a component over the cohort", _MEANT, server),
        ("Summed update of the components that were open", _MEANT, sums),
        ("Summed losses and accuracies", _MEANT, _MEANT),
        ("Who took part, who dropped out, which components stayed closed", _MEANT, _MEANT),
    ]


def _settings(secure: SecureSummary) -> list[tuple[str, str, str]]:
    """(setting, value, what it means) of everything that is known."""
    rules = secure.rules
    rows = [
        ("Back-end", NAMES.get(secure.backend or "", "–"), "how updates are added up"),
        ("Cohort", count(secure.cohort_size), "silos in one secure sum"),
        ("Gate", count(secure.gate), "silos that must hold a component before its sum is released"),
    ]
    if rules is not None:
        rows += [
            ("Colluders c", count(rules.colluders), "silos that may side with the server without breaking the promise"),
            ("Drops", count(rules.max_drops), "silos that may vanish during a sum without discarding the round"),
            ("Largest share w_max", percent(rules.w_max, 0), "of a component's sum that one silo may have"),
            ("Smallest part", count(rules.min_samples), "samples; a smaller part of a component counts as none"),
            (
                "Verified sums",
                "yes" if rules.verified_sums else "no",
                "whether silos check the sum that the server hands out",
            ),
        ]
    rows += [
        ("Threshold t", count(secure.threshold), "silos that must help to open a sum"),
        ("Quorum q", count(secure.quorum), "silos that must confirm the same list of survivors"),
        ("Clip", decimal(secure.clip, 1), "largest size of a weighted coordinate"),
        ("Largest clipped share", percent(secure.clipped_share, 3), "upper bound on coordinates cut off in any round"),
        ("Upload", f"{decimal(secure.upload_bytes_per_parameter, 2)} bytes", "per parameter and round"),
        ("Roster", secure.roster or "–", "fingerprint: compare it with your own copy, aloud"),
    ]
    return [row for row in rows if row[1] not in ("–", "– bytes")]


def _incidents(secure: SecureSummary) -> Markup | None:
    """What went another way than planned, in one paragraph."""
    parts = []
    if secure.frozen_components:
        names = enumerated([str(j) for j in secure.frozen_components])
        parts.append(f"Component {names} stayed closed at the end: too few silos hold it, so its models did not move.")
    for value, text in (
        (secure.dropped_silos, "Silos that dropped out during a sum"),
        (secure.partial_rounds, "Rounds that went on without a silo that had dropped out"),
        (secure.aborted_sessions, "Sessions that were discarded, with nothing revealed"),
    ):
        if value:
            parts.append(f"{text}: {count(value)}.")
    return tag("p", " ".join(parts)) if parts else None


def protection(context: Context) -> Markup:
    """The whole section's content."""
    secure = context.summary.secure
    sentence, kind = headline(secure, context.simulated)
    rows = [
        [what, tag("span", others[0], class_=others[1]), tag("span", server[0], class_=server[1])]
        for what, others, server in _who(secure)
    ]
    colluders = secure.rules.colluders if secure.rules else None
    against = "" if colluders is None else f", even together with up to {colluders} of the silos"
    settings = [[name, value, meaning] for name, value, meaning in _settings(secure)]
    promise = (
        f"This holds against a server that reads everything and may lie{against}. It does not cover dishonest inputs, "
        "what the sums themselves reveal over many rounds (no differential privacy is added), one malicious silo "
        "stopping the run, or timing."
    )
    return join(
        tag("div", tag("p", sentence), class_=f"note {kind}"),
        _incidents(secure),
        tag("h3", "Who could learn what"),
        table(["", "Other silos", "The server"], rows, kind="full") if secure.backend else None,
        tag("p", promise, class_="small") if secure.backend not in (None, "none") else None,
        tag("h3", "Settings in force"),
        table(["Setting", "Value", "Meaning"], settings, kind="full"),
    )
