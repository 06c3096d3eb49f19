"""Local only: every silo trains its own expert with FedGMI's budget, and nobody aggregates anything."""

from __future__ import annotations

import torch

from fedgmi_fedml.data import SiloData
from fedgmi_fedml.local_training import expert_predictions, train_expert
from fedgmi_fedml.rounds.local import Workbench
from fedgmi_fedml.rounds.phases import derive_seed


def local_only(silo: int, data: SiloData, bench: Workbench) -> tuple[int, int]:
    """Train ``comm_round`` × ``epochs`` on one silo, its optimiser afresh each round as everywhere.

    Returns:
        Correct predictions and samples of the silo's test part.
    """
    train = bench.phases.config.train_args
    state = bench.phases.initial_experts()[0]
    for number in range(train.comm_round):
        generator = torch.Generator().manual_seed(derive_seed(bench.phases.seed, "local", silo, number))
        state, _ = train_expert(
            bench.expert, state, data.x_train, data.y_train, bench.expert_settings, generator, what="local only"
        )
    if not len(data.x_test):
        return 0, 0
    right = expert_predictions(bench.expert, state, data.x_test).argmax(1) == data.y_test
    return int(right.sum()), len(data.x_test)
