#!/usr/bin/env bash
# FedGMI on real data in one command: 12 silos over handwritten digits, every aggregation secure.
#
#   bash deploy/demo.sh [arguments of `fedgmi simulate`, such as --set train_args.comm_round=5 or --out DIR]
#
# The first start makes an environment (see _environment.sh for PYTHON, FEDGMI_VENV, FEDGMI_MIN_GB); it needs a package
# index, and about 7 GB of disk. The run itself downloads nothing.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=_environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

prepare_environment
cd "$PROJECT_ROOT"
# exec: Ctrl-C reaches the simulation, which leaves a resumable run and exit code 130.
exec "$ENV_PYTHON" -m fedgmi_fedml.cli simulate configs/digits.yaml "$@"
