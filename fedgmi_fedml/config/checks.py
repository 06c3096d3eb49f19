"""Settings against each other: what no single key can tell. Nothing here ever weakens a setting to make it fit."""

from __future__ import annotations

from collections.abc import Iterator

from fedgmi_fedml.config.base import suggestion
from fedgmi_fedml.config.method import RulesArgs
from fedgmi_fedml.config.models import Config
from fedgmi_fedml.config.reader import KeyPath, dotted
from secure.gate import feasibility, infeasible
from secure.types import Rules

Finding = tuple[tuple[KeyPath, ...], str]
"""The keys a problem rests on (the one to change first) and what is wrong."""

TABLES = ("breast_cancer", "wine", "csv")
FILES = ("npz", "image_folder", "csv")

MODEL_OPTIONS = {
    "mlp": ("hidden",),
    "cnn": ("channels", "hidden"),
    "resnet18_gn": ("groups",),
    "resnet18_bn": (),
}
VAE_OPTIONS = {
    "mlp": ("hidden", "latent", "likelihood", "scale", "min_scale", "max_scale", "kl_weight"),
    "conv": ("channels", "hidden", "latent", "likelihood", "min_scale", "max_scale", "kl_weight"),
    "tabular": ("hidden", "latent", "likelihood", "scale", "min_scale", "max_scale", "kl_weight"),
}
"""Options of the built-in models as ``models`` has them (a test compares); repeated here, where torch is not loaded."""

_TOTAL: KeyPath = ("train_args", "client_num_in_total")
_PER_ROUND: KeyPath = ("train_args", "client_num_per_round")
_RULES: KeyPath = ("fedgmi_args", "secure", "rules")
_BACKEND: KeyPath = ("fedgmi_args", "secure", "backend")
_COHORT: KeyPath = ("fedgmi_args", "initialisation", "cohort_size")
_CANDIDATES: KeyPath = ("fedgmi_args", "initialisation", "candidates")
_COMPONENTS: KeyPath = ("fedgmi_args", "components")
_MIXTURE: KeyPath = ("data_args", "silo_mixture")


def cross_checks(config: Config) -> Iterator[Finding]:
    """Every contradiction between settings."""
    yield from _silos(config)
    yield from _phases(config)
    yield from _backend(config)
    yield from _mixture(config)
    yield from _data(config)
    yield from _models(config)
    yield from _options(config)


def _silos(config: Config) -> Iterator[Finding]:
    """Are there enough silos for what the rules ask?"""
    total, per_round = config.train_args.client_num_in_total, config.train_args.client_num_per_round
    rules, cohort = config.fedgmi_args.secure.rules, config.fedgmi_args.initialisation.cohort_size
    if per_round > total:
        yield (_PER_ROUND, _TOTAL), f"{per_round} silos a round, but there are {total}; at most {dotted(_TOTAL)}"
        per_round = total
    for reason in _reasons(per_round, rules):
        yield (_PER_ROUND, _TOTAL, _RULES, _BACKEND), reason
    if cohort == per_round:
        return
    if cohort > total:
        yield (_COHORT, _TOTAL), f"a cohort of {cohort} cannot be drawn from {total} silos"
        return
    for reason in _reasons(cohort, rules):
        yield (_COHORT, _RULES, _BACKEND), reason


def _reasons(silos: int, rules: RulesArgs) -> list[str]:
    """Why ``silos`` together cannot be summed under these rules."""
    if silos < rules.min_contributors:
        return [
            f"{silos} silos, but a sum is released only over at least {rules.min_contributors} "
            f"({dotted(_RULES)}.min_contributors), so that it never shows one silo's update; add silos"
        ]
    if not feasibility(silos).ok:
        return [feasibility(silos).reason]
    asked = f"colluders {rules.colluders}, max_drops {rules.max_drops}, min_contributors {rules.min_contributors}"
    return [f"{reason}; {dotted(_RULES)}: {asked}" for reason in infeasible(silos, Rules(**rules.model_dump()))]


def _backend(config: Config) -> Iterator[Finding]:
    """The rounds let the server apply the sums, which it cannot read with back-end ``homomorphic``."""
    if config.fedgmi_args.secure.backend == "homomorphic":
        yield (
            (_BACKEND,),
            "homomorphic: so far sessions and `fedgmi bench secure` only, not the rounds of the algorithm; use masked",
        )


def _phases(config: Config) -> Iterator[Finding]:
    """Candidates, warm-up, early stopping."""
    settings, components = config.fedgmi_args.initialisation, config.fedgmi_args.components
    candidates = config.fedgmi_args.candidate_count
    if candidates < components:
        yield (
            (_CANDIDATES, _COMPONENTS),
            f"{candidates} candidates cannot give {components} components; at least 3 each is known to work (null)",
        )
    if settings.kl_samples < 2:
        yield (("fedgmi_args", "initialisation", "kl_samples"),), "a divergence needs at least 2 samples"
    stopping, every = config.train_args.early_stopping_rounds, config.validation_args.frequency_of_the_test
    if stopping is not None and config.data_args.validation_share == 0:
        yield (
            (("train_args", "early_stopping_rounds"), ("data_args", "validation_share")),
            "early stopping needs validation samples; set data_args.validation_share above 0 or this to null",
        )
    if stopping is not None and stopping < every:
        yield (
            (("train_args", "early_stopping_rounds"), ("validation_args", "frequency_of_the_test")),
            f"stops after {stopping} rounds, but only every {every} rounds are tested; at least {every}",
        )


def _mixture(config: Config) -> Iterator[Finding]:
    """Is the rule for the silos' proportions complete?"""
    mixture = config.data_args.silo_mixture
    count = len(mixture.components)
    if mixture.kind == "explicit" and not mixture.proportions:
        yield ((*_MIXTURE, "proportions"),), "kind: explicit needs one row of proportions a silo"
    for number, row in enumerate(mixture.proportions or ()):
        path = (*_MIXTURE, "proportions", number)
        if len(row) != count:
            yield (path, (*_MIXTURE, "components")), f"{len(row)} numbers, but there are {count} components"
        elif abs(sum(row) - 1) > 1e-6:
            yield (path,), f"must sum to 1, sums to {sum(row):g}"
    if mixture.kind == "natural" and not mixture.group:
        yield ((*_MIXTURE, "group"),), "kind: natural needs the name of the group column or array (hospital, writer …)"
    if mixture.kind != "natural" and not count:
        yield ((*_MIXTURE, "components"),), "needs at least one component; [{}] takes the samples as they are"
    sizes = mixture.samples_per_silo
    if isinstance(sizes, tuple) and sizes[0] > sizes[1]:
        yield ((*_MIXTURE, "samples_per_silo"),), f"[low, high] is upside down: [{sizes[0]}, {sizes[1]}]"


def _data(config: Config) -> Iterator[Finding]:
    """Source and splits."""
    data = config.data_args
    if data.validation_share + data.test_share >= 1:
        yield (
            (("data_args", "test_share"), ("data_args", "validation_share")),
            f"validation and test take {data.validation_share + data.test_share:g} of the samples; "
            "together they must stay below 1",
        )
    announced = data.announced_shape is not None or {"columns", "image_size"} & set(data.data_options)
    if data.dataset in FILES and data.data_path is None and not announced:
        yield (
            (("data_args", "data_path"), ("data_args", "dataset")),
            f"dataset: {data.dataset} needs the path of its data; in a deployment, whose silos name their own, "
            "data_args.announced_shape (images) or data_options.columns (tables) instead",
        )
    if data.announced_shape is not None and data.dataset in TABLES:
        yield (
            (("data_args", "announced_shape"), ("data_args", "dataset")),
            f"{data.dataset} is a table; it announces its columns in data_options.columns",
        )
    if data.dataset in TABLES and any(set(entry) & {"rotate", "invert"} for entry in data.silo_mixture.components):
        yield (
            ((*_MIXTURE, "components"), ("data_args", "dataset")),
            f"{data.dataset} is a table, with no images to rotate or invert; use flip, scale, shift, where or classes",
        )


def _options(config: Config) -> Iterator[Finding]:
    """Options that the source or the built-in models do not have. A user's own factory may take any."""
    data, models = config.data_args, config.model_args
    for key, name, known, given in (
        ("model_options", models.model, MODEL_OPTIONS, models.model_options),
        ("vae_options", models.vae, VAE_OPTIONS, models.vae_options),
    ):
        for option in given:
            if name in known and option not in known[name]:
                valid = suggestion(option, known[name]) if known[name] else "it has none"
                yield ((("model_args", key, option), ("model_args",)), f"no option of {name}: {valid}")
    if data.data_options:
        # Here, because the package around it loads torch, which a configuration without such options need not pay for.
        from fedgmi_fedml.data.options import option_problems

        for problem in option_problems(data.dataset, data.data_options):
            key, _, text = problem.partition(": ")
            yield ((tuple(key.split(".")), ("data_args", "dataset")), text)


def _models(config: Config) -> Iterator[Finding]:
    """Models that cannot take the kind of data."""
    table, model, vae = config.data_args.dataset in TABLES, config.model_args.model, config.model_args.vae
    dataset = ("data_args", "dataset")
    if table and model in ("cnn", "resnet18_gn", "resnet18_bn"):
        yield (
            (("model_args", "model"), dataset),
            f"{model} needs images, {config.data_args.dataset} is a table; use mlp",
        )
    if table and vae == "conv":
        yield (("model_args", "vae"), dataset), f"conv needs images, {config.data_args.dataset} is a table; use tabular"
    if table and config.model_args.vae_options.get("likelihood") == "bernoulli":
        yield (
            (("model_args", "vae_options"), dataset),
            "likelihood: bernoulli is for values from 0 to 1; a standardised table needs gaussian",
        )
