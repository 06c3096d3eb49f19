"""Simulation: what is mixed how. The configured mixture, and FedSoft's published layouts by name.

FedSoft (Ruan and Joe-Wong 2022): 100 silos of 100–200 samples for digits and letters, 20 silos of 3000–3500 for
CIFAR-10; 10:90, 30:70, linear and random proportions; rotations 0/90 or 0/90/180/270, lower and upper case letters.
Sample numbers are of training samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedgmi_fedml.errors import ConfigError

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

Entries = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Mixture:
    """``data_args.silo_mixture`` with the layout filled in.

    ``samples`` are training samples a silo (None: all there are). ``reuse``: where the source is too small, a sample
    may be used once for each component, as FedSoft's CIFAR-10 does (65,000 training images out of 50,000).
    """

    kind: str = "linear"
    level: float = 0.3
    concentration: float = 1.0
    dominant: float = 0.6
    proportions: Any = None
    group: str | None = None
    components: Entries = ()
    samples: int | tuple[int, int] | None = None
    reuse: bool = False


@dataclass(frozen=True)
class Layout:
    """A published layout: number of silos, training samples a silo, components, rule of the proportions."""

    silos: int
    samples: tuple[int, int]
    components: Entries
    kind: str
    level: float = 0.3


_TWO: Entries = ({"rotate": 0}, {"rotate": 90})
_FOUR: Entries = (*_TWO, {"rotate": 180}, {"rotate": 270})
_SETS: dict[str, tuple[int, tuple[int, int], Entries]] = {
    "digits": (100, (100, 200), _TWO),
    "digits_4rotations": (100, (100, 200), _FOUR),
    "letters": (100, (100, 200), ({"classes": "lower"}, {"classes": "upper"})),
    "cifar10": (20, (3000, 3500), _TWO),
    "cifar10_4rotations": (20, (3000, 3500), _FOUR),
}
_RULES = {
    "10_90": ("two_level", 0.1),
    "30_70": ("two_level", 0.3),
    "linear": ("linear", 0.3),
    "random": ("random", 0.3),
}

LAYOUTS: dict[str, Layout] = {
    f"fedsoft_{name}_{rule}": Layout(*settings, *_RULES[rule]) for name, settings in _SETS.items() for rule in _RULES
}


def _entry(component: Any) -> Mapping[str, Any]:
    return dict(component) if isinstance(component, Mapping) else component.model_dump(exclude_unset=True)


def resolve_mixture(config: Config) -> tuple[Mixture, tuple[str, ...]]:
    """The mixture of a configuration, and notes where it departs from a published layout.

    A layout decides kind, level and components; ``samples_per_silo`` and the number of silos stay the user's where
    they are set, so that a layout can be shortened.
    """
    given = config.data_args.silo_mixture
    samples = given.samples_per_silo
    # Natural silos keep their samples as they are, unless components were asked for.
    unasked = given.kind == "natural" and "components" not in getattr(given, "model_fields_set", ("components",))
    mixture = Mixture(
        given.kind,
        given.level,
        given.concentration,
        given.dominant,
        given.proportions,
        given.group,
        () if unasked else tuple(_entry(component) for component in given.components or ()),
        samples if samples is None or isinstance(samples, int) else (samples[0], samples[1]),
    )
    if given.layout is None:
        return mixture, ()
    layout = LAYOUTS.get(given.layout)
    if layout is None:
        raise ConfigError(f"data_args.silo_mixture.layout: {given.layout!r} is not one of {', '.join(LAYOUTS)}")
    keep = "samples_per_silo" in getattr(given, "model_fields_set", ()) and samples is not None
    size = mixture.samples if keep else layout.samples
    mixture = replace(
        mixture, kind=layout.kind, level=layout.level, components=layout.components, samples=size, reuse=True
    )
    return mixture, tuple(_departures(given.layout, layout, config.train_args.client_num_in_total, size))


def _departures(name: str, layout: Layout, silos: int, samples: Any) -> list[str]:
    notes = []
    if silos != layout.silos:
        notes.append(f"layout {name} has {layout.silos} silos, this run {silos} (train_args.client_num_in_total)")
    if samples != layout.samples:
        notes.append(f"layout {name} has {layout.samples} samples a silo, this run {samples}")
    return notes
