"""What every party can work out alone: the phases, the layout of each upload, and the models that phases start from.

Server and silos build one ``Phases`` each, from the agreed configuration and data shape, and reach the same bits.

    (tables: moments) → candidates → (selection) → warmup (survey, training, survey, training …) → rounds → evaluate
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from fedgmi_fedml.config import Config
from fedgmi_fedml.data import TableSchema, table_statistics_spec
from fedgmi_fedml.initialisation import pair_statistics_spec, survey_statistics_spec
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.models import build_expert, build_router, build_vae, export_state
from fedgmi_fedml.packing import Layout, Part, StateDict
from fedgmi_fedml.rounds.wire import Plan
from fedgmi_fedml.shapes import DataShape
from fedgmi_fedml.temperature import temperature_statistics_spec
from secure.api import check_capacity
from secure.beacon import disjoint_cohorts, draw
from secure.types import MetricSpec, Rules, SessionParams, StatisticSpec, VectorSpec

MOMENTS, CANDIDATES, WARMUP, ROUNDS, EVALUATE = "moments", "candidates", "warmup", "rounds", "evaluate"
ORDER = (MOMENTS, CANDIDATES, WARMUP, ROUNDS, EVALUATE)

LATE_FROM = 2
"""Index of the first sample-level round in which labels and router have a say: before, both know too little."""

_LOSS = {"bound": 1e7, "resolution": 2.0**-16}  # nats a sample; anything beyond is clipped and counted
_RATE = {"bound": 1.0, "resolution": 2.0**-30}  # accuracies, and one per silo that could measure it


class Phases:
    """Layouts, schemas and starting models of a run.

    Args:
        config: the agreed configuration.
        shape: shape of one sample and number of classes.
        parts: what travels in the sample-level rounds: VAEs and experts, or (baselines) experts alone.
        schema: the columns of a table, which is standardised with securely summed moments; else ``None``.
    """

    def __init__(
        self,
        config: Config,
        shape: DataShape,
        parts: Sequence[Part] = ("vae", "expert"),
        schema: TableSchema | None = None,
    ) -> None:
        self.config, self.shape, self.parts, self.schema = config, shape, tuple(parts), schema
        self.components = config.fedgmi_args.components
        self.seed = config.common_args.random_seed
        vae = self._model("vae", 0) if "vae" in parts else {}
        self.routes = bool(vae) and self.components > 1 and config.fedgmi_args.affinity.router
        expert = self._model("expert", 0)
        clip = config.fedgmi_args.secure.clip
        examples: dict[Part, StateDict] = {"vae": vae, "expert": expert}
        common: dict[Part, StateDict] = {"router": self._model("router", 0)} if self.routes else {}
        self.rounds_layout = Layout.mixture(
            {part: examples[part] for part in self.parts}, self.components, clip, common
        )
        if vae:
            self.warmup_layout = Layout.mixture({"vae": vae}, self.components, clip)
            self.candidate_layout = Layout.mixture({"vae": vae}, 1, clip)

    # ---- layouts and schemas -------------------------------------------------------------------------------------

    def layout(self, phase: str) -> Layout:
        """The layout of what a phase uploads (surveys and ``evaluate`` upload no models)."""
        match phase:
            case "candidates":
                return self.candidate_layout
            case "warmup":
                return self.warmup_layout
            case "rounds":
                return self.rounds_layout
        raise KeyError(phase)

    def spec(self, phase: str, survey: bool = False) -> VectorSpec:
        """Blocks, metrics and statistics of a phase's session."""
        if phase == MOMENTS and self.schema is not None:
            return VectorSpec(1, (), (), table_statistics_spec(self.schema))
        if phase == EVALUATE:
            return VectorSpec(1, (), self._accuracy_metrics(component=0), self.round_statistics())
        if survey:
            return VectorSpec(self.components, (), (), self.survey_statistics())
        layout = self.layout(phase)
        metrics = [
            MetricSpec(f"{run.part}_loss.{run.component}", component=run.component, **_LOSS) for run in layout.runs
        ]
        if phase == ROUNDS:
            metrics += self._accuracy_metrics(component=None)
            return layout.spec(metrics, self.round_statistics())
        return layout.spec(metrics)

    def survey_statistics(self) -> tuple[StatisticSpec, ...]:
        """What silos sum in a warm-up survey: pooled losses, and their products where the warm-up whitens them."""
        pairs = pair_statistics_spec(self.components) if self.whitens else ()
        return survey_statistics_spec(self.components) + pairs

    @property
    def whitens(self) -> bool:
        """Whether the warm-up whitens the silos' losses; with two components one σ does the same."""
        return self.config.fedgmi_args.initialisation.warmup_whitening and self.components > 2

    def round_statistics(self) -> tuple[StatisticSpec, ...]:
        """What silos sum for the next round's affinity: pooled losses; proportions (router); calibration (T fitted)."""
        if "vae" not in self.parts:
            return ()
        wanted = survey_statistics_spec(self.components)
        if self.routes:
            wanted += tuple(StatisticSpec(f"proportion.{j}", **_RATE) for j in range(self.components))
        return wanted + temperature_statistics_spec(self.components) if self.calibrates else wanted

    def is_late(self, number: int) -> bool:
        """Whether labels and router, where they are on, have a say in sample-level round ``number``."""
        return number >= LATE_FROM

    @property
    def calibrates(self) -> bool:
        """Whether the temperature is fitted (``temperature: auto``)."""
        return self.config.fedgmi_args.affinity.temperature == "auto"

    def _accuracy_metrics(self, component: int | None) -> tuple[MetricSpec, ...]:
        """Accuracy summed over silos, and the number of silos that could measure one: their quotient is the mean."""
        names = (
            "validation_accuracy",
            "validation_silos",
            "test_accuracy",
            "test_silos",
            "confidence",
            "confidence_silos",
        )
        return tuple(MetricSpec(name, component=component, **_RATE) for name in names)

    def check_capacity(self, silos: int) -> None:
        """Prove, before anything is trained, that every upload of the run fits its ring for this number of silos.

        Raises:
            CapacityError: names the block, metric or statistic, and the remedy.
        """
        for phase in self._phases():
            check_capacity(self.spec(phase), silos)
            if phase == WARMUP:
                check_capacity(self.spec(phase, survey=True), silos)

    def schema_digest(self) -> bytes:
        """32 bytes: equal iff two parties agree on every upload of the run."""
        hasher = hashlib.sha256(b"fedgmi/phases/1")
        for phase in self._phases():
            hasher.update(self.spec(phase).digest())
        return hasher.digest()

    def _phases(self) -> tuple[str, ...]:
        """The phases that this method and these data go through, in order."""
        phases = ORDER[1:] if "vae" in self.parts else (ROUNDS, EVALUATE)
        return phases if self.schema is None else (MOMENTS, *phases)

    def session_params(self, run_id: str, plan: Plan, cohort: tuple[int, ...], roster_digest: bytes) -> SessionParams:
        """The proposal for one plan: the server's word, and what a silo expects to hear."""
        secure = self.config.fedgmi_args.secure
        return SessionParams(
            run_id=run_id,
            phase=plan.phase,
            round=plan.round,
            attempt=plan.attempt,
            group=plan.group,
            backend=secure.backend,
            cohort=cohort,
            spec=self.spec(plan.phase, plan.survey),
            start_digest=plan.start_digest,
            config_digest=bytes.fromhex(self.config.digest()),
            roster_digest=roster_digest,
            rules=Rules(**secure.rules.model_dump()),
            survey=plan.survey,
            piece_bytes=secure.piece_bytes,
        )

    # ---- starting models -----------------------------------------------------------------------------------------

    def candidate_start(self, draw: int) -> MixtureState:
        """The common random VAE from which every cohort of draw ``draw`` starts (algorithm.md, A)."""
        return MixtureState(vaes=(self._model("vae", self._seed("candidate", draw)),))

    def initial_experts(self) -> tuple[StateDict, ...]:
        """M experts, distinct across components, the same on all parties."""
        return tuple(self._model("expert", self._seed("expert", j)) for j in range(self.components))

    def initial_router(self) -> tuple[StateDict, ...]:
        """The router before its first round; empty where there is none."""
        return (self._model("router", self._seed("router")),) if self.routes else ()

    def drawn_cohorts(self, plan: Plan, beacon: bytes, silos: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The cohorts that may work on a plan: drawn from the beacon, so that the server chooses nobody."""
        if plan.phase == CANDIDATES:
            return self.candidate_cohorts(self.draw_of(plan), beacon, silos)
        return (self.round_cohort(plan.round, beacon, silos) if plan.phase == ROUNDS else silos,)

    def round_cohort(self, number: int, beacon: bytes, silos: tuple[int, ...]) -> tuple[int, ...]:
        """The K silos of sample-level round ``number``, drawn from the beacon; all where K is not less."""
        k = self.config.train_args.client_num_per_round
        return silos if k >= len(silos) else draw(beacon, f"rounds/{number}", silos, k)

    def candidate_cohorts(self, number: int, beacon: bytes, silos: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Disjoint cohorts of a draw of candidates, of at least ``cohort_size`` silos, no more than wanted."""
        size = self.config.fedgmi_args.initialisation.cohort_size
        cohorts = disjoint_cohorts(beacon, f"candidates/{number}", silos, size)
        return cohorts[: self.config.fedgmi_args.candidate_count]

    def can_work_out(self, plan: Plan) -> bool:
        """Whether a silo needs no models to start from: the first round of a draw of candidates."""
        return plan.phase == CANDIDATES and plan.round % self.config.fedgmi_args.initialisation.candidate_rounds == 0

    def draw_of(self, plan: Plan) -> int:
        """The draw that a candidate round belongs to."""
        return plan.round // self.config.fedgmi_args.initialisation.candidate_rounds

    def _model(self, part: Part, seed: int) -> StateDict:
        build = {"vae": build_vae, "expert": build_expert, "router": build_router}[part]
        return export_state(build(self.config, self.shape, seed))

    def _seed(self, *purpose: object) -> int:
        return derive_seed(self.seed, *purpose)

    # ---- sizes ---------------------------------------------------------------------------------------------------

    def candidate_draws(self, silos: int) -> int:
        """Draws of disjoint cohorts needed for the wanted number of candidates (at least 3M)."""
        return self.config.fedgmi_args.initialisation.draws(self.components, silos)


def derive_seed(seed: int, *purpose: object) -> int:
    """A 63-bit seed for one purpose: SHA-256 over the run's public seed and the purpose's words. Never for secrets."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(f"fedgmi/seed/{text}".encode()).digest()[:8], "big") >> 1
