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
            if [ "$1" = --out ]; then OUT="$2"; else SETS+=(--set "$2"); fi
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

fedgmi() { "$ENV_PYTHON" -m fedgmi_fedml.cli "$@"; }

# Print one value of the configuration $1: the dotted key $2.
setting() {
    "$ENV_PYTHON" -c 'import functools, sys
from fedgmi_fedml.config import load_config
print(functools.reduce(getattr, sys.argv[2].split("."), load_config(sys.argv[1])))' "$1" "$2"
}

free_port() {
    "$ENV_PYTHON" -c 'import socket
with socket.socket() as place:
    place.bind(("127.0.0.1", 0))
    print(place.getsockname()[1])'
}

# The first free folder of that name.
choose_out() {
    local base number=1
    base="runs/$(setting "$WORK/config.yaml" common_args.run_name)-federation"
    OUT="$base"
    while [ -e "$OUT" ]; do
        number=$((number + 1))
        OUT="$base-$number"
    done
}

# The effective configuration, with the number of silos in it, and a kit for everybody.
prepare_federation() {
    local port silo
    fedgmi config show "$CONFIG" ${SETS[@]+"${SETS[@]}"} >"$WORK/asked.yaml"
    SILOS="${SILOS:-$(setting "$WORK/asked.yaml" train_args.client_num_in_total)}"
    local per_round
    per_round="$(setting "$WORK/asked.yaml" train_args.client_num_per_round)"
    if [ "$per_round" -gt "$SILOS" ]; then per_round="$SILOS"; fi
    fedgmi config show "$CONFIG" ${SETS[@]+"${SETS[@]}"} --set "train_args.client_num_in_total=$SILOS" \
        --set "train_args.client_num_per_round=$per_round" --set fedgmi_args.secure.cohort_nonces=seed \
        --set comm_args.backend=FEDGMI_GRPC >"$WORK/config.yaml"
    port="$(free_port)"
    {
        printf 'federation: local\noperator: this machine\nconfig: %s/config.yaml\n' "$WORK"
        printf 'server: {address: "127.0.0.1:%s", bind: "127.0.0.1:%s"}\nsilos:\n' "$port" "$port"
        for silo in $(seq 1 "$SILOS"); do printf '  - {name: silo-%03d, identity: make}\n' "$silo"; done
    } >"$WORK/project.yaml"
    fedgmi -q provision "$WORK/project.yaml" --out "$WORK/kits" --yes >"$WORK/provision.log" 2>&1 || {
        cat "$WORK/provision.log" >&2
        refuse "the kits could not be made"
    }
}

# Start one party: name, then the command's arguments. Its output goes to <out>/<name>/console.log.
start_party() {
    local name="$1"
    shift
    "$ENV_PYTHON" -m fedgmi_fedml.cli "$@" >"$WORK/$name.out" 2>"$WORK/$name.err" &
    PIDS+=("$!")
    NAMES+=("$name")
}

start_everybody() {
    local silo name run_id common
    run_id="$(setting "$WORK/config.yaml" common_args.run_name)/fedgmi"
    export OMP_NUM_THREADS=1
    common=(--config "$WORK/config.yaml" --repeatable)
    start_party server server --kit "$WORK/kits/server" "${common[@]}" --run-id "$run_id" --out "$OUT/server"
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
prepare_federation
[ -n "$OUT" ] || choose_out
say "One server and $SILOS silos, each a process of its own; reports go to $OUT"
start_everybody
wait_for_everybody || exit 1
cat "$WORK/server.out"
printf 'each silo'\''s own report: %s\n' "$OUT/silo-*/report.html"
