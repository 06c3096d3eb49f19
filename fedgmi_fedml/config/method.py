"""The section ``fedgmi_args``: the algorithm's own settings (algorithm.md) and those of its secure aggregation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedgmi_fedml.config.base import Count, Lax, Natural, NonNegative, Positive, Section, expected

Score = Literal["elbo", "reconstruction", "iwae"]
SecureBackend = Literal["masked", "none", "homomorphic"]


class Affinity(Section):
    """How one sample is scored against the components."""

    score: Score = Field(default="elbo", description="Loss under a VAE that stands in for −log p(x), nats.")
    iwae_samples: Count = Field(default=8, description="iwae: importance samples.")
    temperature: Annotated[Positive | Literal["auto"], expected("a number above 0, or auto")] = Field(
        default=1.0, description="Divides the scores; auto fits it each round from securely summed statistics."
    )
    offset: bool = Field(default=False, description="Subtract each component's pooled mean score (a secure sum).")
    em_passes: Count = Field(
        default=3, description="Times a silo alternates responsibilities and proportions at each scoring."
    )
    labels: bool = Field(
        default=False,
        description="Let labels help to partition the training samples, from the third round on; never in predictions.",
    )
    router: bool = Field(
        default=False, description="Federate one classifier of samples into components, used from the third round on."
    )
    router_model: Literal["mlp", "expert"] = Field(
        default="mlp", description="router: an MLP with 128 hidden units, or the experts' architecture."
    )
    router_weight: Positive = Field(default=1.0, description="router: factor of its term in the affinity.")
    router_learning_rate: Positive = Field(default=0.002, description="router: step size (Adam).")
    proportions: Literal["soft", "hard"] = Field(
        default="soft", description="Mixture proportions from mean responsibilities, or from the assigned share."
    )


class Initialisation(Section):
    """Phases A–C: candidates from cohorts, greedy selection, annealed warm-up."""

    candidates: Count | None = Field(default=None, description="Candidate VAEs; null: three a component.")
    cohort_size: Count = Field(default=4, description="Silos of one disjoint cohort; at least the gate.")
    candidate_rounds: Count = Field(default=3, description="Rounds that each cohort trains its candidate.")
    candidate_epochs: Count = Field(default=2, description="Local epochs of one such round.")
    kl_samples: Count = Field(default=256, description="Decoded samples of each candidate for the pairwise divergence.")
    selection: Literal["greedy", "random"] = Field(default="greedy", description="How M of the candidates are chosen.")
    warmup_rounds: Natural = Field(default=12, description="Rounds on whole silos before any sample is partitioned.")
    warmup_epochs: Count = Field(default=1, description="Local epochs of one such round.")
    warmup_beta: Annotated[
        Annotated[tuple[NonNegative, NonNegative], Lax], expected("[b0, b1], two numbers of zero or more")
    ] = Field(default=(1.0, 2.0), description="[b0, b1]: sharpness of warm-up round r is b0 + b1·r.")
    warmup_whitening: bool = Field(
        default=True,
        description="Scale the silos' losses alike in every direction, from secure sums of their products, so that no "
        "component starves for its contrast being small at first; with two components it changes nothing.",
    )
    weight_floor: float = Field(
        default=0.05, ge=0, lt=1, description="A silo trains only the VAEs whose warm-up weight reaches this."
    )

    def draws(self, components: int, silos: int) -> int:
        """Draws of disjoint cohorts that give the wanted number of candidates."""
        wanted = self.candidates or 3 * components
        return -(-wanted // max(1, silos // self.cohort_size))


class RulesArgs(Section):
    """What every silo insists on (secure-aggregation.md). Nothing weaker is ever used instead."""

    colluders: Natural = Field(default=1, description="Silos assumed to side with the server.")
    max_drops: Natural = Field(default=1, description="Silos that may vanish in the protocol without losing the round.")
    min_contributors: int = Field(default=4, ge=2, description="Holders a component needs before its sum is released.")
    min_samples: Count = Field(default=8, description="Sample counts below this count as zero, samples.")
    w_max: float = Field(
        default=0.5, gt=0, le=1, description="Largest share of a component's weight one silo may have."
    )
    verified_sums: bool = Field(default=False, description="Uploads carry two tags that let silos check the sum.")

    @property
    def gate(self) -> int:
        """Holders that open a component: max(min_contributors, max_drops + colluders + 2)."""
        return max(self.min_contributors, self.max_drops + self.colluders + 2)


class Deadlines(Section):
    """How long the server waits for silos, seconds."""

    join: Positive = Field(default=120.0, description="For silos to join the run, seconds.")
    ready: Positive = Field(default=600.0, description="For silos to have trained, seconds.")
    step: Positive = Field(default=30.0, description="For one step of the protocol, seconds.")
    upload: Positive = Field(default=120.0, description="For one upload, seconds.")


class SecureArgs(Section):
    """Secure aggregation."""

    backend: SecureBackend = Field(
        default="masked", description="Data plane. none protects nothing: for measurement only, named by every party."
    )
    rules: RulesArgs = Field(default=RulesArgs(), description="What every silo insists on.")
    clip: float = Field(
        default=8.0,
        gt=0,
        le=1024,
        description="Largest weighted change of a parameter, in its own unit; one fixed-point step is clip / 2^29.",
    )
    piece_bytes: int = Field(default=1 << 18, ge=4096, le=1 << 26, description="One authenticated upload piece, bytes.")
    deadlines: Deadlines = Field(default=Deadlines(), description="How long the server waits, seconds.")
    cohort_nonces: Literal["seed", "system"] = Field(
        default="seed", description="What draws cohorts: the seed (repeatable), or system randomness (deployments)."
    )


class FedgmiArgs(Section):
    """The algorithm's own settings."""

    on_silo_error: Literal["continue", "stop"] = Field(
        default="continue",
        description="When a silo's local work fails: go on without it in this round, or end the run for all, with the "
        "last whole models.",
    )

    components: Count = Field(default=2, description="Number of components M: VAEs and experts.")
    affinity: Affinity = Field(default=Affinity(), description="How one sample is scored against the components.")
    initialisation: Initialisation = Field(default=Initialisation(), description="Candidates, selection, warm-up.")
    secure: SecureArgs = Field(default=SecureArgs(), description="Secure aggregation.")

    @property
    def candidate_count(self) -> int:
        """Number of candidate VAEs, with the default (three a component) filled in."""
        chosen = self.initialisation.candidates
        return 3 * self.components if chosen is None else chosen
