#!/usr/bin/env bash
# A whole federation on this machine, as real processes: one server and its silos over mutual TLS on the loopback.
#
#   bash deploy/local_federation.sh [CONFIG] [SILOS] [--out DIR] [--set SECTION.KEY=VALUE ...]
#
# CONFIG is a YAML file or a shipped name (default: configs/digits.yaml), SILOS their number (default: the
# configuration's). Keys are made for this one run and thrown away. Each silo takes its part of the simulated data, and
# with the same seed the final models have the digests of `fedgmi simulate`. DIR (default: runs/<run_name>-federation,
# numbered where it exists) receives one folder a party, each with its own report.html.
# FEDGMI_DEADLINE is how long it may take, seconds (default 3600). Environment: see _environment.sh.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=_environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"

CONFIG="configs/digits.yaml"
SILOS=""
OUT=""
SETS=()
DEADLINE="${FEDGMI_DEADLINE:-3600}"
WORK=""
RUN_NAME=""
PIDS=()
NAMES=()
ENDED=()

read_arguments() {
    local given=0
    while [ $# -gt 0 ]; do
        case "$1" in
        -h | --help)
            sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        --out | --set)
            [ $# -ge 2 ] || refuse "$1 needs a value" "bash deploy/local_federation.sh --help tells more."
            if [ "$1" = --out ]; then OUT="$2"; else SETS+=("$2"); fi
            shift
            ;;
        -*) refuse "unknown option $1" "bash deploy/local_federation.sh --help tells which there are." ;;
        *)
            given=$((given + 1))
            case "$given" in
            1) CONFIG="$1" ;;
            2) SILOS="$1" ;;
            *) refuse "one argument too many: $1" "First CONFIG, then SILOS." ;;
            esac
            ;;
        esac
        shift
    done
    case "$SILOS" in *[!0-9]*) refuse "SILOS must be a whole number, not $SILOS" ;; esac
}

# Write the effective configuration and the project of this federation into $WORK; set SILOS and RUN_NAME.
describe_federation() {
    "$ENV_PYTHON" - "$WORK" "$CONFIG" "$SILOS" ${SETS[@]+"${SETS[@]}"} >"$WORK/numbers" <<'PYTHON' || exit $?
import socket
import sys
from pathlib import Path

from fedgmi_fedml.config import load_config
from fedgmi_fedml.errors import ConfigError

work, name, silos, *changes = sys.argv[1:]
try:
    asked = load_config(name, changes).train_args
    count = int(silos or asked.client_num_in_total)
    here = [
        f"train_args.client_num_in_total={count}",
        f"train_args.client_num_per_round={min(count, asked.client_num_per_round)}",
        "fedgmi_args.secure.cohort_nonces=seed",  # the simulation's cohorts
        "comm_args.backend=FEDGMI_GRPC",
    ]
    config = load_config(name, [*changes, *here])
except ConfigError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
with socket.socket() as place:
    place.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{place.getsockname()[1]}"
Path(work, "config.yaml").write_text(config.to_yaml())
listed = "".join(f"  - {{name: silo-{number:03d}, identity: make}}\n" for number in range(1, count + 1))
Path(work, "project.yaml").write_text(
    f"federation: local\noperator: this machine\nconfig: config.yaml\n"
    f"server: {{address: '{address}', bind: '{address}'}}\nsilos:\n{listed}"
)
print(count, config.common_args.run_name)
PYTHON
    read -r SILOS RUN_NAME <"$WORK/numbers"
}

# The first free folder of that name.
choose_out() {
    local base="runs/$RUN_NAME-federation" number=1
    OUT="$base"
    while [ -e "$OUT" ]; do
        number=$((number + 1))
        OUT="$base-$number"
    done
}

# A kit for everybody, thrown away with $WORK.
make_kits() {
    "$ENV_PYTHON" -m fedgmi_fedml.cli -q provision "$WORK/project.yaml" --out "$WORK/kits" --yes \
        >"$WORK/provision.log" 2>&1 || {
        cat "$WORK/provision.log" >&2
        refuse "the kits could not be made"
    }
}

# Start one party: name, then the command's arguments. What it says is kept in $WORK; its own log is in its folder.
start_party() {
    local name="$1"
    shift
    "$ENV_PYTHON" -m fedgmi_fedml.cli "$@" >"$WORK/$name.out" 2>"$WORK/$name.err" &
    PIDS+=("$!")
    NAMES+=("$name")
}

start_everybody() {
    local silo name common
    export OMP_NUM_THREADS=1
    common=(--config "$WORK/config.yaml" --repeatable)
    start_party server server --kit "$WORK/kits/server" "${common[@]}" --run-id "$RUN_NAME/fedgmi" \
        --out "$OUT/server"
    for silo in $(seq 1 "$SILOS"); do
        name="$(printf 'silo-%03d' "$silo")"
        start_party "$name" silo --kit "$WORK/kits/silo-$name" "${common[@]}" --simulated-part "$silo" \
            --out "$OUT/$name"
    done
}

# Wait for everybody; print each that failed with the end of what it said. The silos follow a server that has ended.
wait_for_everybody() {
    local begun=$SECONDS index code failed=0 left=${#PIDS[@]} shown=0
    while [ "$left" -gt 0 ]; do
        if [ $((SECONDS - begun)) -gt "$DEADLINE" ]; then
            say "error: the federation has not ended within $DEADLINE seconds (FEDGMI_DEADLINE)"
            return 1
        fi
        for index in "${!PIDS[@]}"; do
            [ -z "${ENDED[index]:-}" ] || continue
            kill -0 "${PIDS[index]}" 2>/dev/null && continue
            code=0
            wait "${PIDS[index]}" || code=$?
            ENDED[index]=1
            left=$((left - 1))
            [ "$code" -eq 0 ] && continue
            say "error: ${NAMES[index]} ended with exit code $code:"
            tail -n 5 "$WORK/${NAMES[index]}.err" >&2
            failed=1
            if [ "$index" -eq 0 ]; then return 1; fi
        done
        shown="$(show_new_lines "$shown")"
        sleep 0.2
    done
    return "$failed"
}

# What the server has said since line $1, on standard error; print how many lines there are now.
show_new_lines() {
    local now
    now="$(wc -l <"$WORK/server.err")"
    if [ "$now" -gt "$1" ]; then sed -n "$(($1 + 1)),${now}p" "$WORK/server.err" >&2; fi
    echo "$now"
}

# Nobody stays behind: first in good order, then not. A process that has ended is left alone: its number may be another's.
end_everybody() {
    local tries=0
    signal_running TERM || true
    while [ "$tries" -lt 50 ] && signal_running 0; do
        tries=$((tries + 1))
        sleep 0.2
    done
    signal_running KILL || true
    [ -z "$WORK" ] || rm -rf "$WORK"
}

# Send signal $1 to whoever still runs; whether there was anybody.
signal_running() {
    local index found=1
    for index in ${PIDS[@]+"${!PIDS[@]}"}; do
        [ -z "${ENDED[index]:-}" ] || continue
        if kill "-$1" "${PIDS[index]}" 2>/dev/null; then found=0; fi
    done
    return "$found"
}

read_arguments "$@"
if [ -z "${ENV_PYTHON:-}" ]; then prepare_environment; fi
HERE="$PWD"
cd "$PROJECT_ROOT"
if [ -n "$OUT" ]; then case "$OUT" in /*) ;; *) OUT="$HERE/$OUT" ;; esac; fi
if [ -f "$HERE/$CONFIG" ]; then CONFIG="$(cd "$(dirname "$HERE/$CONFIG")" && pwd)/$(basename "$CONFIG")"; fi
trap end_everybody EXIT
trap 'exit 130' INT TERM
WORK="$(mktemp -d)"
describe_federation
make_kits
[ -n "$OUT" ] || choose_out
say "One server and $SILOS silos, each a process of its own; reports go to $OUT"
start_everybody
wait_for_everybody || exit 1
cat "$WORK/server.out"
printf 'each silo'\''s own report: %s\n' "$OUT/silo-*/report.html"
