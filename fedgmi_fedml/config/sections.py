"""The FedML-style sections.

FedML itself reads the same file, so names of sections and keys are FedML's own wherever FedML has one, and first-level
keys are unique across sections (FedML drops the sections' names and the last of two equal keys wins).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from fedgmi_fedml.config.base import (
    Count,
    Lax,
    Natural,
    NonNegative,
    Positive,
    Section,
    Share,
    expected,
    name_schema,
    named,
)

Dataset = Literal[
    "digits", "breast_cancer", "wine", "mnist", "fashion", "emnist", "cifar10", "npz", "image_folder", "csv"
]  # fmt: skip
Mixture = Literal["linear", "two_level", "explicit", "dirichlet", "dominant", "random", "natural"]
Optimiser = Literal["adam", "sgd"]
Baseline = Literal["local", "fedavg", "ifca", "fedsoft", "fedem"]
Transport = Literal["FEDGMI_GRPC", "GRPC", "MQTT_S3"]
NamedClasses = Literal["upper", "lower", "digits"]

CACHE_FOLDER = "${FEDGMI_DATA:-~/.cache/fedgmi}"
DATASETS: tuple[str, ...] = get_args(Dataset)
MODELS = ("cnn", "mlp", "resnet18_gn", "resnet18_bn")
VAES = ("mlp", "conv", "tabular")
LAYOUTS = tuple(
    f"fedsoft_{source}_{rule}"
    for source in ("digits", "digits_4rotations", "letters", "cifar10", "cifar10_4rotations")
    for rule in ("10_90", "30_70", "linear", "random")
)

Layout = Annotated[str, named(LAYOUTS), name_schema(LAYOUTS)]
ModelName = Annotated[str, named(MODELS, factory=True), name_schema(MODELS, factory=True)]
VaeName = Annotated[str, named(VAES, factory=True), name_schema(VAES, factory=True)]
Row = Annotated[tuple[NonNegative, ...], Lax]


class CommonArgs(Section):
    """What kind of run this is."""

    training_type: Literal["cross_silo", "simulation"] = Field(
        default="cross_silo", description="FedML's platform. `fedgmi simulate` runs either kind in one process."
    )
    scenario: Literal["horizontal"] = Field(
        default="horizontal", description="Silos share the features, not the samples."
    )
    random_seed: Natural = Field(
        default=0, description="Seed of data splits, models and training. Masks and keys never depend on it."
    )
    run_name: str = Field(default="fedgmi", min_length=1, description="Names the run in its folder, logs and report.")
    using_mlops: bool = Field(default=False, description="Report to FedML's MLOps platform. FedML's agents rewrite it.")


Values = str | int | float | bool


class Span(TypedDict, total=False):
    """A range of numbers, both ends included."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    min: float
    max: float


class ComponentSpec(TypedDict, total=False):
    """One true component of a simulated mixture: which samples it may take, and what is done to them.

    A plain mapping; an empty one takes the samples as they are.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    rotate: Annotated[Literal[0, 90, 180, 270], Field(description="Images: turned anticlockwise, degrees.")]
    invert: Annotated[bool, Field(description="Images: light and dark exchanged.")]
    classes: Annotated[
        NamedClasses | Annotated[tuple[int | str, ...], Lax],
        expected("upper, lower, digits, or a list of class names or numbers"),
        Field(description="Only samples of these classes: upper, lower, digits, or a list of names or numbers."),
    ]
    where: Annotated[
        dict[str, Values | Annotated[tuple[Values, ...], Lax] | Span],
        expected("a mapping of columns to a value, a list of values, or {min: a, max: b}"),
        Field(description="Only samples with these values in a column."),
    ]
    flip: Annotated[bool, Field(description="Tables: every numeric column with its sign turned round its mean.")]
    scale: Annotated[float, Field(gt=0, description="Tables: numeric columns stretched by so much round their mean.")]
    shift: Annotated[float, Field(description="Tables: numeric columns moved, standard deviations.")]


class SiloMixture(Section):
    """How a simulation deals one pooled source to the silos."""

    kind: Mixture = Field(default="linear", description="Rule for the silos' true mixture proportions.")
    level: float = Field(default=0.3, gt=0, le=0.5, description="two_level: the smaller proportion (0.3 means 30:70).")
    concentration: Positive = Field(default=1.0, description="dirichlet: concentration; small values give purer silos.")
    dominant: float = Field(default=0.6, gt=0, le=1, description="dominant: proportion of each silo's main component.")
    proportions: Annotated[
        Annotated[tuple[Row, ...], Lax] | None, expected("a list of rows of numbers of zero or more, or null")
    ] = Field(
        default=None, description="explicit: one row a silo, one entry a component; rows are repeated for more silos."
    )
    group: str | None = Field(default=None, description="natural: the column or array that names a sample's group.")
    components: Annotated[tuple[ComponentSpec, ...], Lax] = Field(
        default=({"rotate": 0}, {"rotate": 90}),
        description="The true components that the pooled samples are turned into.",
    )
    samples_per_silo: Annotated[
        Count | Annotated[tuple[Count, Count], Lax] | None,
        expected("a whole number above 0, [low, high], or null for the largest number that the source can give"),
    ] = Field(
        default=None,
        description="Training samples of a silo (validation and test come on top); [low, high] draws each silo's "
        "number between; null: the largest equal number that the source can give.",
    )
    layout: Layout | None = Field(
        default=None,
        description="A published layout by name; it decides kind, level, components and, where null, samples_per_silo.",
    )


class DataArgs(Section):
    """Where samples come from, and how they are split."""

    dataset: Dataset = Field(default="digits", description="Source of the samples.")
    data_cache_dir: str = Field(
        default=CACHE_FOLDER,
        description="Folder of published data sets: <dataset>.npz, or the files as torchvision keeps them; downloads "
        "land here. ~, ${VARIABLE} and ${VARIABLE:-default} are expanded.",
    )
    data_path: str | None = Field(
        default=None,
        description="File or folder of the samples; published data sets need none where data_cache_dir has them. "
        "~, ${VARIABLE} and ${VARIABLE:-default} are expanded.",
    )
    data_options: dict[str, Any] = Field(
        default={}, description="Settings of the source, such as array or column names."
    )
    announced_shape: Annotated[
        Annotated[tuple[Count, Count, Count], Lax] | None, expected("[channels, height, width], or null")
    ] = Field(
        default=None,
        description="Deployment: [channels, height, width] of every silo's images, for the server has none to look at "
        "(data_options.classes names their classes). Tables announce data_options.columns instead; published data "
        "sets need neither.",
    )
    partition_method: Literal["none"] = Field(
        default="none", description="FedML's own partitioner, unused: silo_mixture decides."
    )
    validation_share: Share = Field(default=0.1, description="Share of a silo's samples kept for validation.")
    test_share: Share = Field(default=0.2, description="Share of a silo's samples kept for testing.")
    silo_mixture: SiloMixture = Field(
        default=SiloMixture(), description="Simulation: how samples are dealt to the silos."
    )


class ModelArgs(Section):
    """The experts and the VAEs; sizes follow the data's shape."""

    model: ModelName = Field(default="cnn", description="Expert of every component.")
    model_options: dict[str, Any] = Field(default={}, description="Keyword arguments of the expert's factory.")
    vae: VaeName = Field(default="mlp", description="VAE of every component.")
    vae_options: dict[str, Any] = Field(
        default={}, description="Keyword arguments of the VAE's factory, such as hidden, latent, likelihood."
    )


class TrainArgs(Section):
    """Rounds and local training."""

    federated_optimizer: Literal["FedGMI"] = Field(default="FedGMI", description="The algorithm.")
    client_num_in_total: Count = Field(default=12, description="Number of silos.")
    client_num_per_round: Count = Field(default=12, description="Silos that take part in a round.")
    comm_round: Count = Field(
        default=10, description="Sample-level rounds; the initial phases have their own settings."
    )
    epochs: Count = Field(default=1, description="Local epochs a round.")
    batch_size: Count = Field(default=50, description="Samples a gradient step.")
    client_optimizer: Optimiser = Field(default="adam", description="Local optimiser; starts afresh each round.")
    learning_rate: Positive = Field(default=0.001, description="Step size of the experts (and VAEs).")
    weight_decay: NonNegative = Field(default=0.0, description="Decay of the experts' weights, per step.")
    vae_learning_rate: Positive | None = Field(default=None, description="Step size of the VAEs; null: learning_rate.")
    mixed_precision: bool = Field(default=False, description="Train in bfloat16 where the device can.")
    early_stopping_rounds: Count | None = Field(
        default=None, description="Stop after so many tested rounds without a better validation score; null: never."
    )
    partition_every: Count = Field(default=1, description="Score and partition the samples anew every so many rounds.")

    @property
    def vae_rate(self) -> float:
        """Step size of the VAEs, with the default filled in."""
        return self.learning_rate if self.vae_learning_rate is None else self.vae_learning_rate


class ValidationArgs(Section):
    """What is measured."""

    frequency_of_the_test: Count = Field(default=1, description="Evaluate every so many rounds (and after the last).")
    evaluate_oracle: bool = Field(default=False, description="Simulation: also train experts on the true components.")
    evaluate_baselines: Annotated[tuple[Baseline, ...], Lax] = Field(
        default=(), description="Simulation: other methods to run on the same data, models and budget."
    )
    fedsoft_lambda: NonNegative = Field(
        default=0.1, description="Simulation, FedSoft: pull of a silo's model towards the centres (CIFAR-10: 0.01)."
    )


class DeviceArgs(Section):
    """Where it computes. Never part of what parties must agree on."""

    device: Annotated[
        Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")], expected("auto, cpu, cuda or cuda:<number>")
    ] = Field(default="auto", description="auto, cpu, cuda or cuda:<number>. auto takes a GPU where there is one.")
    worker_num: Count = Field(
        default=1, description="Simulation: processes that train silos. FedML's agents rewrite it."
    )


class CommArgs(Section):
    """Transport between parties. Open: the transports' own settings pass through to FedML."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    backend: Transport = Field(default="FEDGMI_GRPC", description="Transport of a deployment.")


class TrackingArgs(Section):
    """What is written, and where."""

    enable_tensorboard: bool = Field(default=False, description="Write TensorBoard event files into the run's folder.")
    output_dir: str = Field(default="runs", min_length=1, description="Folder that receives one folder a run.")
    status_port: Annotated[Annotated[int, Field(ge=0, le=65535)] | None, expected("a port (0 … 65535), or null")] = (
        Field(
            default=None,
            description="Server: port of the status page and its Prometheus metrics; 0 takes a free one, null: off.",
        )
    )
    status_bind: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Server: address that the status page listens on. Anything but loopback sends page and token "
        "over the network unencrypted: put a TLS proxy in front, or use an SSH tunnel.",
    )
