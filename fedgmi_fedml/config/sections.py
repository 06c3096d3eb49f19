"""The FedML-style sections. FedML itself reads the same file, so their names and those of their keys are FedML's own
wherever FedML has one, and first-level keys are unique across sections (FedML drops the sections' names)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .base import Count, Natural, NonNegative, Positive, Section, Share, choice

DATASETS = (
    "digits", "breast_cancer", "mnist", "fashion", "emnist", "cifar10", "npz", "image_folder", "csv",
)  # fmt: skip
MIXTURES = ("linear", "two_level", "explicit", "dirichlet", "dominant", "random", "natural")
LAYOUTS = ("fedsoft_10_90", "fedsoft_30_70", "fedsoft_linear", "fedsoft_random")
MODELS = ("cnn", "mlp", "resnet18_gn", "resnet18_bn")
VAES = ("mlp", "conv", "tabular")
OPTIMISERS = ("adam", "sgd")
BASELINES = ("local", "fedavg")
COMM_BACKENDS = ("FEDGMI_GRPC", "GRPC", "MQTT_S3")


class CommonArgs(Section):
    """What kind of run this is."""

    training_type: choice(("cross_silo", "simulation")) = Field(
        "cross_silo", description="FedML's platform. `fedgmi simulate` runs either kind in one process."
    )
    scenario: choice(("horizontal",)) = Field("horizontal", description="Silos share the features, not the samples.")
    random_seed: Natural = Field(
        0, description="Seed of data splits, models and training. Masks and keys never depend on it."
    )
    run_name: str = Field("fedgmi", min_length=1, description="Names the run in its folder, logs and report.")
    using_mlops: bool = Field(False, description="Report to FedML's MLOps platform. FedML's agents rewrite it.")


class ComponentSpec(Section):
    """One true component of a simulated mixture: how the pooled samples are changed or chosen."""

    rotate: float = Field(0.0, description="Rotation of every image, degrees anticlockwise.")
    classes: Literal["upper", "lower", "digits"] | Annotated[tuple[Natural, ...], Field(strict=False)] | None = Field(
        None, description="Only samples of these classes: upper, lower or digits for characters, or class numbers."
    )


class SiloMixture(Section):
    """How a simulation deals one pooled source to the silos."""

    kind: choice(MIXTURES) = Field("linear", description="Rule for the silos' true mixture proportions.")
    level: float = Field(0.3, gt=0, le=0.5, description="two_level: the smaller proportion (0.3 means 30:70).")
    concentration: Positive = Field(1.0, description="dirichlet: concentration; small values give purer silos.")
    dominant: float = Field(0.6, gt=0, le=1, description="dominant: proportion of each silo's main component.")
    proportions: Annotated[
        tuple[Annotated[tuple[NonNegative, ...], Field(strict=False)], ...] | None, Field(strict=False)
    ] = Field(None, description="explicit: one row a silo, one entry a component; rows are repeated for more silos.")
    group: str | None = Field(None, description="natural: the column or array that names a sample's group.")
    components: Annotated[tuple[ComponentSpec, ...], Field(strict=False)] = Field(
        (ComponentSpec(rotate=0.0), ComponentSpec(rotate=90.0)),
        description="The true components that the pooled samples are turned into.",
    )
    samples_per_silo: Count | Annotated[tuple[Count, Count], Field(strict=False)] = Field(
        800, description="Samples a silo holds, all parts together; [low, high] draws each silo's number between."
    )
    layout: choice(LAYOUTS) | None = Field(
        None, description="A published layout by name; it sets kind, level and samples_per_silo."
    )


class DataArgs(Section):
    """Where samples come from, and how they are split."""

    dataset: choice(DATASETS) = Field("digits", description="Source of the samples.")
    data_cache_dir: str = Field("~/.cache/fedgmi", description="Folder for downloads. ~ and ${VARIABLE} are expanded.")
    data_path: str | None = Field(
        None, description="File or folder of the samples. ~, ${VARIABLE} and ${VARIABLE:-default} are expanded."
    )
    data_options: dict[str, Any] = Field({}, description="Settings of the source, such as array or column names.")
    partition_method: choice(("none",)) = Field(
        "none", description="FedML's own partitioner, unused: silo_mixture decides."
    )
    validation_share: Share = Field(0.1, description="Share of a silo's samples kept for validation.")
    test_share: Share = Field(0.2, description="Share of a silo's samples kept for testing.")
    silo_mixture: SiloMixture = Field(SiloMixture(), description="Simulation: how samples are dealt to the silos.")


class ModelArgs(Section):
    """The experts and the VAEs; sizes follow the data's shape."""

    model: choice(MODELS, factory=True) = Field("cnn", description="Expert of every component.")
    model_options: dict[str, Any] = Field({}, description="Keyword arguments of the expert's factory.")
    vae: choice(VAES, factory=True) = Field("mlp", description="VAE of every component.")
    vae_options: dict[str, Any] = Field(
        {}, description="Keyword arguments of the VAE's factory, such as hidden, latent, likelihood."
    )


class TrainArgs(Section):
    """Rounds and local training."""

    federated_optimizer: choice(("FedGMI",)) = Field("FedGMI", description="The algorithm.")
    client_num_in_total: Count = Field(12, description="Number of silos.")
    client_num_per_round: Count = Field(12, description="Silos that take part in a round.")
    comm_round: Count = Field(10, description="Sample-level rounds; the initial phases have their own settings.")
    epochs: Count = Field(1, description="Local epochs a round.")
    batch_size: Count = Field(50, description="Samples a gradient step.")
    client_optimizer: choice(OPTIMISERS) = Field("adam", description="Local optimiser; starts afresh each round.")
    learning_rate: Positive = Field(0.001, description="Step size of the experts (and VAEs).")
    weight_decay: NonNegative = Field(0.0, description="Decay of the experts' weights, per step.")
    vae_learning_rate: Positive | None = Field(None, description="Step size of the VAEs; null: learning_rate.")
    mixed_precision: bool = Field(False, description="Train in bfloat16 where the device can.")
    early_stopping_rounds: Count | None = Field(
        None, description="Stop after so many tested rounds without a better validation score; null: never."
    )
    partition_every: Count = Field(1, description="Score and partition the samples anew every so many rounds.")

    @property
    def vae_rate(self) -> float:
        """Step size of the VAEs, with the default filled in."""
        return self.learning_rate if self.vae_learning_rate is None else self.vae_learning_rate


class ValidationArgs(Section):
    """What is measured."""

    frequency_of_the_test: Count = Field(1, description="Evaluate every so many rounds (and after the last).")
    evaluate_oracle: bool = Field(False, description="Simulation: also train experts on the true components.")
    evaluate_baselines: Annotated[tuple[choice(BASELINES), ...], Field(strict=False)] = Field(
        (), description="Simulation: other methods to run on the same data, models and budget."
    )


class DeviceArgs(Section):
    """Where it computes. Never part of what parties must agree on."""

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="auto, cpu, cuda or cuda:<number>. auto takes a GPU where there is one."
    )
    worker_num: Count = Field(1, description="Simulation: processes that train silos. FedML's agents rewrite it.")


class CommArgs(Section):
    """Transport between parties. Open: the transports' own settings pass through to FedML."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    backend: choice(COMM_BACKENDS) = Field("FEDGMI_GRPC", description="Transport of a deployment.")


class TrackingArgs(Section):
    """What is written, and where."""

    enable_tensorboard: bool = Field(False, description="Write TensorBoard event files into the run's folder.")
    output_dir: str = Field("runs", min_length=1, description="Folder that receives one folder a run.")
