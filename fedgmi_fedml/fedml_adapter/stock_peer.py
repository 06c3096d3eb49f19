"""One process of FedML's stock plaintext FedAvg over its own GRPC back-end: the peer of ``fedgmi bench federation``.

    python -m fedgmi_fedml.fedml_adapter.stock_peer '{"rank": 0, "silos": 3, "parameters": 1048576, …}'

Stock is left as it is shipped but for training, of which there is none, and for the look-ups of the vendor's hosts at
its start. ``repaired`` replaces its busy loop by a wait on its queue. Rank 0 ends with one JSON line: seconds by round.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import queue
import sys
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

logging.disable(logging.CRITICAL)

from fedml.core.mlops.mlops_configs import MLOpsConfigs  # noqa: E402 - its import logs

MLOpsConfigs.fetch_all_configs = staticmethod(lambda: (None, None, None, None))

import fedml  # noqa: E402
from fedml import FedMLRunner  # noqa: E402
from fedml.core import ClientTrainer, ServerAggregator  # noqa: E402
from fedml.core.distributed.communication.grpc.grpc_comm_manager import GRPCCommManager  # noqa: E402


class _Trainer(ClientTrainer):
    def get_model_params(self) -> Any:
        return self.model.cpu().state_dict()

    def set_model_params(self, model_parameters: Any) -> None:
        self.model.load_state_dict(model_parameters)

    def train(self, train_data: Any, device: Any, args: Any) -> None:
        pass

    def test(self, test_data: Any, device: Any, args: Any) -> dict[str, int]:
        return {"test_correct": 0, "test_loss": 0, "test_total": 1}


class _Aggregator(ServerAggregator):
    def __init__(self, model: Any, args: Any) -> None:
        super().__init__(model, args)
        self.times: list[float] = []

    def get_model_params(self) -> Any:
        return self.model.cpu().state_dict()

    def set_model_params(self, model_parameters: Any) -> None:
        self.times.append(time.monotonic())
        self.model.load_state_dict(model_parameters)

    def test(self, test_data: Any, device: Any, args: Any) -> dict[str, int]:
        return {}

    def test_all(self, *arguments: Any) -> bool:
        return True


def _waiting_loop(manager: Any) -> None:
    """Stock's loop, but waiting instead of turning."""
    while manager.is_running:
        try:
            raw = manager.grpc_servicer.message_q.get(timeout=0.1)
        except queue.Empty:
            continue
        message = pickle.loads(raw)  # noqa: S301 - what stock does, between processes of this bench
        for observer in manager._observers:
            observer.receive_message(message.get_type(), message)


def _arguments(rank: int, silos: int, rounds: int, addresses: str) -> SimpleNamespace:
    ids = list(range(1, silos + 1)) if rank == 0 else [rank]
    return SimpleNamespace(
        training_type="cross_silo", scenario="horizontal", federated_optimizer="FedAvg", backend="GRPC",
        using_mlops=False, random_seed=0, rank=rank, role="client" if rank else "server", run_id="1",
        client_id_list=json.dumps(ids), client_id=rank, client_num_in_total=silos, client_num_per_round=silos,
        comm_round=rounds, epochs=1, batch_size=1, client_optimizer="sgd", learning_rate=0.1, weight_decay=0.0,
        dataset="none", model="none", grpc_ipconfig_path=addresses, frequency_of_the_test=1, worker_num=silos,
        comm=None, n_proc_per_node=1, n_node_in_silo=1, using_gpu=False, enable_wandb=False, enable_tracking=False,
    )  # fmt: skip


def main() -> None:
    """See the module's text."""
    given = json.loads(sys.argv[1])
    rank, silos = given["rank"], given["silos"]
    if given.get("repaired"):
        GRPCCommManager.message_handling_subroutine = _waiting_loop
    arguments = fedml.init(
        _arguments(rank, silos, given["rounds"], given["addresses"]), check_env=False, should_init_logs=False
    )
    model = torch.nn.Linear(given["parameters"] // 16, 16, bias=False)
    local = {index: [(torch.zeros(1, 1), torch.zeros(1))] for index in range(silos)}
    pooled = [(torch.zeros(1, 1), torch.zeros(1))]
    data = [silos, silos, pooled, pooled, dict.fromkeys(range(silos), 1), local, local, 16]
    aggregator = _Aggregator(model, arguments)
    FedMLRunner(arguments, torch.device("cpu"), data, model, _Trainer(model, arguments), aggregator).run()
    if rank == 0:
        times = aggregator.times
        print(json.dumps({"seconds": [b - a for a, b in pairwise(times)]}), flush=True)
    os._exit(0)  # stock leaves threads behind that never end


if __name__ == "__main__":
    main()
