"""FedGMI as the server runs it (algorithm.md): the script that ``ServerRun`` feeds with messages.

       moments      tables only: securely summed moments standardise every silo's features alike
A  candidates   disjoint cohorts train one VAE each from a common random start
B  selection    greedy max–min over the candidates' pairwise KL
C  warm-up      survey of losses, then VAEs sharpened on whole silos, β rising
D  rounds       sample-level rounds with experts; best state by securely summed validation accuracy
   evaluate     one last secure sum of accuracies under the final models
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import torch

from fedgmi_fedml.errors import RunError
from fedgmi_fedml.initialisation import beta_schedule, select_greedy, select_random, symmetric_kl_matrix
from fedgmi_fedml.mixture import MixtureState, apply_aggregate
from fedgmi_fedml.models import VaeBank, build_vae
from fedgmi_fedml.rounds.cohort_step import Outcome
from fedgmi_fedml.rounds.phases import CANDIDATES, EVALUATE, LATE_FROM, MOMENTS, ROUNDS, WARMUP, derive_seed
from fedgmi_fedml.rounds.server import Script, ServerRun, Wait
from fedgmi_fedml.rounds.wire import Plan

log = logging.getLogger(__name__)

PATIENCE = 3
"""Rounds in a row without a result that end the run."""

STARVED = 3
"""Warm-up rounds in a row that a component stays closed before it is reseeded."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come: all that a checkpoint holds. ``phase`` and ``round`` name the *next* step.

    Attributes:
        beacon, nonces are re-agreed at every start and not part of it.
        candidates: finished and running candidates, in order of draw and cohort; in the warm-up the spare ones.
        state: the models after the last whole step.
        starved: warm-up rounds in a row that each component has been closed.
        warmed: steps that β has risen.
        limited: whether β has stopped rising because a component fell below its gate.
        best, best_accuracy, best_round: the best state by validation accuracy so far.
        stale: tested rounds since then.
        evaluated: whether the final models have been: all that is left is to tell the silos.
    """

    phase: str = MOMENTS
    round: int = 0
    candidates: tuple[MixtureState, ...] = ()
    state: MixtureState = field(default_factory=MixtureState)
    starved: tuple[int, ...] = ()
    warmed: int = 0
    best: MixtureState | None = None
    best_accuracy: float = -1.0
    best_round: int = -1
    stale: int = 0
    evaluated: bool = False
    separability: tuple[tuple[float, ...], ...] = ()


Save = Callable[[Progress], None]


class FedGMI:
    """The method's server side; an instance is a script for ``ServerRun``.

    Args:
        save: called after every whole step.
        resume: where to go on, or ``None`` to begin.
    """

    def __init__(self, save: Save = lambda progress: None, resume: Progress | None = None) -> None:
        self._save = save
        self.progress = resume or Progress()
        self.outcome, self.reason = "running", ""
        self._lost = 0

    def __call__(self, run: ServerRun) -> Script:
        """The whole run."""
        self.run, self.phases, self.config = run, run.phases, run.phases.config
        self.start = self.config.fedgmi_args.initialisation
        yield from run.gather()
        if self.progress.phase == MOMENTS:
            if self.phases.schema is not None:
                yield from self._moments()
            # a method without density models has nothing to initialise
            self._advance(phase=CANDIDATES if "vae" in self.phases.parts else ROUNDS)
        steps: tuple[tuple[str, Callable[[], Script]], ...] = (
            (CANDIDATES, self._candidates),
            (WARMUP, self._warm_up),
            (ROUNDS, self._rounds),
        )
        for phase, step in steps:
            if self.progress.phase == phase:
                yield from step()
                if self.outcome == "failed":
                    break
        if self.outcome == "failed":
            yield from self._finish(failed=True)
            return
        if not self.progress.evaluated:
            yield from self._evaluate()
        yield from self._finish()

    def _moments(self) -> Script:
        """One survey of all silos; the server learns nothing but that it took place."""
        plan = Plan(MOMENTS, 0, 0, 0, self.run.silos, self.progress.state.digest, survey=True)
        (outcome,) = yield from self.run.steps([plan], [self.progress.state])
        self._record(MOMENTS, 0, [outcome])
        if outcome.failed:
            raise RunError(f"the table's moments could not be summed: {outcome.reason}")

    # ---- A, B ----------------------------------------------------------------------------------------------------

    def _candidates(self) -> Script:
        """Every draw: disjoint cohorts, each training its own copy of one random VAE (algorithm.md, A)."""
        here, size = len(self.run.members), self.start.cohort_size
        if here < size:
            raise RunError(
                f"{here} silos joined; a candidate needs cohorts of {size} (fedgmi_args.initialisation.cohort_size): "
                "wait for more silos (fedgmi_args.secure.deadlines.join), and start the run again"
            )
        draws, rounds = self.phases.candidate_draws(here), self.start.candidate_rounds
        self._announce("candidates", draws * rounds)
        for number in range(self.progress.round, draws * rounds):
            index = number // rounds
            cohorts = self.phases.candidate_cohorts(index, self.run.beacon, self.run.members)
            current = list(self.progress.candidates)
            if number % rounds == 0:
                current += [self.phases.candidate_start(index)] * len(cohorts)
            first = len(current) - len(cohorts)
            plans = [
                Plan(CANDIDATES, number, 0, group, cohort, current[first + group].digest)
                for group, cohort in enumerate(cohorts)
            ]
            outcomes = yield from self.run.steps(plans, current[first:])
            for group, outcome in enumerate(outcomes):
                current[first + group] = self._apply(outcome, current[first + group])
            self._record(CANDIDATES, number, outcomes)
            self._advance(round=number + 1, candidates=tuple(current))
            if self._is_over(outcomes):
                return
        self._select()

    def _select(self) -> None:
        """Greedy max–min over pairwise KL (algorithm.md, B): a pure function of the candidates."""
        candidates, components = self._trained(self.progress.candidates), self.phases.components
        if len(candidates) < components:
            self._fail(f"only {len(candidates)} candidates could be trained, for {components} components")
            return
        seed = derive_seed(self.phases.seed, "selection")
        if self.start.selection == "random":
            chosen = select_random(len(candidates), components, seed)
        else:
            chosen = select_greedy(self._divergence([c.vaes[0] for c in candidates]), components)
        self.run.notify("selected", {"candidates": len(candidates), "chosen": list(chosen)})
        state = MixtureState(vaes=tuple(candidates[c].vaes[0] for c in chosen))
        spare = tuple(candidate for c, candidate in enumerate(candidates) if c not in chosen)
        if self.start.warmup_rounds:
            self._advance(phase=WARMUP, round=0, candidates=spare, state=state, starved=(0,) * components)
        else:
            self._advance(phase=ROUNDS, round=0, candidates=(), state=state)

    def _trained(self, candidates: tuple[MixtureState, ...]) -> tuple[MixtureState, ...]:
        """Those that some cohort really trained: one left as it began is unlike all others, and would be chosen."""
        cohorts = len(self.phases.candidate_cohorts(0, self.run.beacon, self.run.members))
        draws = range(-(-len(candidates) // cohorts))
        begun = {self.phases.candidate_start(index).digest for index in draws}
        return tuple(candidate for candidate in candidates if candidate.digest not in begun)

    def _divergence(self, vaes: list) -> torch.Tensor:  # type: ignore[type-arg]
        """Symmetrised KL of every two VAEs, (C, C) nats, from decoded samples."""
        module = build_vae(self.config, self.phases.shape, self.phases.seed)
        generator = torch.Generator().manual_seed(derive_seed(self.phases.seed, "divergence"))
        return symmetric_kl_matrix(VaeBank(module, vaes), self.start.kl_samples, generator)

    # ---- C -------------------------------------------------------------------------------------------------------

    def _warm_up(self) -> Script:
        """Survey, then a round on whole silos; β stops rising where a component falls below its gate."""
        self._announce("warmup", self.start.warmup_rounds)
        b0, b1 = self.start.warmup_beta
        for number in range(self.progress.round, self.start.warmup_rounds):
            state, beta = self.progress.state, beta_schedule(self.progress.warmed, b0, b1)
            everyone = self.run.silos
            survey = yield from self.run.steps(
                [Plan(WARMUP, 2 * number, 0, 0, everyone, state.digest, survey=True, beta=beta)], [state]
            )
            outcomes = yield from self.run.steps(
                [Plan(WARMUP, 2 * number + 1, 0, 0, everyone, state.digest, beta=beta)], [state]
            )
            end = self._apply(outcomes[0], state)
            rises = all(outcomes[0].open) and not outcomes[0].failed
            end = end if outcomes[0].failed else self._reseed(number, end, outcomes[0].open)
            self._record(WARMUP, number, [*outcomes], beta=beta, surveyed=not survey[0].failed)
            self._advance(round=number + 1, state=end, warmed=self.progress.warmed + rises)
            if self._is_over(outcomes):
                return
        self._advance(phase=ROUNDS, round=0, candidates=())

    def _reseed(self, number: int, state: MixtureState, is_open: tuple[bool, ...]) -> MixtureState:
        """A component that nobody leant to for ``STARVED`` warm-up rounds starts again from the spare candidate that is
        farthest from the others: the way out of a poor selection."""
        starved = tuple(0 if o else n + 1 for o, n in zip(is_open, self.progress.starved, strict=True))
        spare, vaes = list(self.progress.candidates), list(state.vaes)
        for j, rounds in enumerate(starved):
            if rounds < STARVED or not spare:
                continue
            others = vaes[:j] + vaes[j + 1 :]
            matrix = self._divergence([*others, *(candidate.vaes[0] for candidate in spare)])
            farthest = int(matrix[len(others) :, : len(others)].min(dim=1).values.argmax()) if others else 0
            vaes[j] = spare.pop(farthest).vaes[0]
            starved = (*starved[:j], 0, *starved[j + 1 :])
            self.run.notify("component_reseeded", {"component": j, "round": number})
        self.progress = replace(self.progress, candidates=tuple(spare), starved=starved)
        return replace(state, vaes=tuple(vaes))

    # ---- D -------------------------------------------------------------------------------------------------------

    def _rounds(self) -> Script:
        """Sample-level rounds (Algorithm 1), K of N silos each."""
        train = self.config.train_args
        if not self.progress.state.experts:
            experts, router = self.phases.initial_experts(), self.phases.initial_router()
            self._advance(state=replace(self.progress.state, experts=experts, router=router))
        self._announce("rounds", train.comm_round)
        for number in range(self.progress.round, train.comm_round):
            if self._stops_early(number):
                return
            state = self.progress.state
            cohort = self.phases.round_cohort(number, self.run.beacon, self.run.silos)
            (outcome,) = yield from self.run.steps([Plan(ROUNDS, number, 0, 0, cohort, state.digest)], [state])
            self._judge(number, outcome, state)
            self._record(ROUNDS, number, [outcome])
            self._advance(round=number + 1, state=self._apply(outcome, state))
            if self._is_over([outcome]):
                return

    def _stops_early(self, number: int) -> bool:
        """Whether so many rounds before ``number`` have brought nothing that it need not begin."""
        patience = self.config.train_args.early_stopping_rounds
        if patience is None or self.progress.stale < patience:
            return False
        self.run.notify("stopped_early", {"round": number - 1})
        return True

    def _judge(self, number: int, outcome: Outcome, state: MixtureState) -> None:
        """The round's summed validation accuracy belongs to the models it started from."""
        accuracy = mean_metric(outcome, "validation")
        first = LATE_FROM if self.phases.routes else 1  # untrained experts; a router that has no say yet
        if accuracy is None or number < first:
            return
        if accuracy > self.progress.best_accuracy:
            self._advance(best=state, best_accuracy=accuracy, best_round=number - 1, stale=0)
        else:
            self._advance(stale=self.progress.stale + 1)

    def _evaluate(self) -> Script:
        """Accuracy of the final models, as one more secure sum; they may be the best."""
        state = self.progress.state
        plan = Plan(EVALUATE, 0, 0, 0, self.run.silos, state.digest)
        (outcome,) = yield from self.run.steps([plan], [state])
        accuracy = mean_metric(outcome, "validation")
        if self.progress.best is None or accuracy is None or accuracy >= self.progress.best_accuracy:
            best = -1.0 if accuracy is None else accuracy
            self._advance(best=state, best_accuracy=best, best_round=self.progress.round - 1)
        self._record(EVALUATE, 0, [outcome])
        self._advance(evaluated=True)

    def _finish(self, failed: bool = False) -> Generator[Wait, bool, None]:
        state = self.progress.state
        if not failed:
            self.outcome = "finished"
            if self.phases.components > 1 and state.vaes:
                matrix = self._divergence(list(state.vaes)).tolist()
                self._advance(separability=tuple(tuple(row) for row in matrix))
        yield from self.run.finish(self.reason or "all rounds done", state, self.progress.best or state, failed)

    # ---- bookkeeping ---------------------------------------------------------------------------------------------

    def _is_over(self, outcomes: list[Outcome]) -> bool:
        """Whether the run must end: a silo's failure is to stop it, or three steps in a row reached no result."""
        self._lost = self._lost + 1 if all(outcome.failed for outcome in outcomes) else 0
        if self.run.stop_reason:
            self._fail(self.run.stop_reason)
        elif self._lost >= PATIENCE:
            self._fail(f"{PATIENCE} rounds in a row reached no result; the last: {outcomes[-1].reason}")
        return self.outcome == "failed"

    def _fail(self, reason: str) -> None:
        """End with the last whole models."""
        self.outcome, self.reason = "failed", reason
        log.error("the run ends early: %s", reason)

    def _apply(self, outcome: Outcome, state: MixtureState) -> MixtureState:
        """The next state; a failed step, or one with nothing open, leaves it as it was."""
        if outcome.aggregate is None:
            return state
        end = apply_aggregate(state, outcome.aggregate, self.phases.layout(outcome.plan.phase))
        self.run.released(outcome, end)
        return end

    def _advance(self, **changes: object) -> None:
        self.progress = replace(self.progress, **changes)  # type: ignore[arg-type]
        if {"phase", "round", "evaluated"} & set(changes):
            self._save(self.progress)

    def _announce(self, phase: str, total: int) -> None:
        self.run.notify("phase", {"phase": phase, "total": total, "done": self.progress.round})

    def _record(self, phase: str, number: int, outcomes: list[Outcome], **extra: object) -> None:
        """One line for telemetry: only what the server may know."""
        released = [o.aggregate for o in outcomes if o.aggregate is not None]
        metrics = [a.metrics for a in released]
        self.run.notify(
            "round",
            {
                "phase": phase,
                "round": number,
                "metrics": metrics[0] if len(metrics) == 1 and phase != CANDIDATES else {},
                "candidate_loss": [m["vae_loss.0"] for m in metrics] if phase == CANDIDATES else [],
                "open": [list(o.open[: self.phases.components]) for o in outcomes],
                "dropped": sorted({s for a in released for s in set(a.cohort) - set(a.survivors)}),
                "survivors": sum(len(a.survivors) for a in released),
                "complete": all(a.complete for a in released) and not any(o.failed for o in outcomes),
                "attempts": max(o.plan.attempt - self.run.first_attempt + 1 for o in outcomes),
                "clipped_share": max((a.clipped_share for a in released), default=0.0),
                "failed": [o.reason for o in outcomes if o.failed],
                **extra,
            },
        )


def mean_metric(outcome: Outcome, part: str) -> float | None:
    """Mean over silos of a securely summed accuracy; ``None`` where nothing was measured or the round was partial."""
    aggregate = outcome.aggregate
    if aggregate is None or not aggregate.complete:
        return None
    silos = aggregate.metrics.get(f"{part}_silos", 0.0)
    return aggregate.metrics[f"{part}_accuracy"] / silos if round(silos) else None
