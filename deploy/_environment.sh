# shellcheck shell=bash
# The environment that demo.sh and test.sh share: find a Python, make a virtual environment, install with constraints.
# Sourced, never run. After `prepare_environment`, $ENV_PYTHON is the interpreter to use.
#
#   PYTHON          interpreter to use (3.10 or 3.11); default: the first of python3.11, python3.10, python3, python
#   FEDGMI_VENV     folder of the environment; default: .venv in the project
#   FEDGMI_MIN_GB   free disk space asked for before an install, in GB; 0 switches the check off
#
# pip's own settings hold as everywhere: with PIP_EXTRA_INDEX_URL naming PyTorch's index of CPU builds, the same pins
# install about 1 GB instead of about 7 (then set FEDGMI_MIN_GB=2).

PROJECT_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${FEDGMI_VENV:-$PROJECT_ROOT/.venv}"
MIN_GB="${FEDGMI_MIN_GB:-7}"
STAMP="$VENV/.fedgmi-installed"

say() { printf '%s\n' "$*" >&2; }

# Print the reason and what to do, then stop: 2 is the program's own code for "your input, not our fault".
refuse() {
    say "error: $1"
    shift
    local line
    for line in "$@"; do say "       $line"; done
    exit 2
}

# Print 3.10 or 3.11 when $1 is an interpreter that will do; print nothing otherwise (a shim may exist and not run).
usable_version() {
    "$1" -c 'import sys, venv, ensurepip
v = sys.version_info[:2]
print("%d.%d" % v if v in ((3, 10), (3, 11)) else "")' 2>/dev/null || true
}

# Set BASE_PYTHON to the first usable interpreter.
find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        [ -n "$(usable_version "$PYTHON")" ] || refuse "PYTHON=$PYTHON is not a Python 3.10 or 3.11 with venv and ensurepip" \
            "FedML 0.9.6 installs on these two only. On Debian and Ubuntu the module is in the package python3-venv."
        BASE_PYTHON="$PYTHON"
        return
    fi
    for candidate in python3.11 python3.10 python3 python; do
        if [ -n "$(usable_version "$candidate")" ]; then
            BASE_PYTHON="$candidate"
            return
        fi
    done
    refuse "no Python 3.10 or 3.11 with venv and ensurepip was found" \
        "FedML 0.9.6 installs on these two only. Install one (Debian, Ubuntu: python3.11 and python3.11-venv), or name" \
        "it: PYTHON=/path/to/python3.11 bash deploy/demo.sh" \
        "Without FedML, simulation also works on Python 3.12: see docs/installation.md."
}

# Whole GB (of 1024^3 bytes) for the environment: what is free there, and what a stopped install has already put in.
room_gb() {
    mkdir -p "$(dirname "$VENV")" || refuse "cannot make the folder that holds $VENV"
    { df -Pk "$(dirname "$VENV")" | awk 'NR == 2 { print $4 }'; du -sk "$VENV" 2>/dev/null || true; } |
        awk '{ sum += $1 } END { print int(sum / 1048576) }'
}

# Refuse to start an install that would fill the disk half-way.
check_disk() {
    local room
    room="$(room_gb)"
    if [ "$room" -lt "$MIN_GB" ]; then
        refuse "$room GB free for $VENV, and the install needs about $MIN_GB GB" \
            "Free some space, or put the environment elsewhere: FEDGMI_VENV=/big/disk/fedgmi-venv" \
            "FEDGMI_MIN_GB=0 goes on regardless; docs/installation.md names a way that needs about 2 GB."
    fi
}

# What an installed environment depends on: interpreter, the project's place (the install points there), ranges, pins.
# Python hashes, since sha256sum is not everywhere.
fingerprint() {
    "$1" -c 'import hashlib, sys
digest = hashlib.sha256((sys.version + sys.argv[1]).encode())
for name in ("pyproject.toml", "deploy/constraints.txt"):
    digest.update(open(sys.argv[1] + "/" + name, "rb").read())
print(digest.hexdigest())' "$PROJECT_ROOT"
}

# pip keeps every download until all are installed: 3 GB on top of 7, and as much again in its cache. Where there is no
# room for that, the large packages go in one at a time, so that no more than one download lies on the disk.
install_large_packages_one_by_one() {
    local pin pattern
    say "Little free disk: installing the large packages one at a time."
    export PIP_NO_CACHE_DIR=1
    "$ENV_PYTHON" -m pip install "$@" --no-deps torch || return
    # A build for the CPU alone names no CUDA package, and needs none of the rest.
    pattern='any("cuda" in r for r in importlib.metadata.requires("torch"))'
    "$ENV_PYTHON" -c "import importlib.metadata, sys; sys.exit(not $pattern)" || return 0
    grep -oE '^(nvidia-[a-z0-9-]+|triton)==[^ ;]+' deploy/constraints.txt | while read -r pin; do
        "$ENV_PYTHON" -m pip install "$@" --no-deps "$pin" || return
    done
}

install_project() {
    say "Installing into $VENV (first time: some minutes, about $MIN_GB GB; later starts skip this) …"
    local quiet=(--quiet)
    if [ -t 2 ]; then quiet=(); fi
    # Named relatively and from the project's folder, since pip splits the variable at spaces. The variables, unlike
    # the option -c, also hold in the environments in which pip builds FedML's source packages.
    (
        cd "$PROJECT_ROOT" || exit 1
        export PIP_CONSTRAINT=deploy/constraints.txt PIP_BUILD_CONSTRAINT=deploy/constraints.txt
        export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USE_PEP517=1
        if [ "$(room_gb)" -lt 12 ] && ! "$ENV_PYTHON" -c 'import torch' 2>/dev/null; then
            install_large_packages_one_by_one ${quiet[@]+"${quiet[@]}"} || exit 1
        fi
        "$ENV_PYTHON" -m pip install ${quiet[@]+"${quiet[@]}"} --editable '.[all,dev]' &&
            "$ENV_PYTHON" -m pip check
    ) >&2 || refuse "the install failed; pip's own message is above" \
        "Run the same command again once the cause is gone: what was installed stays."
}

# Make or update the environment; quick when nothing changed.
prepare_environment() {
    local wanted
    ENV_PYTHON="$VENV/bin/python"
    # An environment whose interpreter went away, or is another than the one asked for, is made anew.
    if [ -e "$VENV" ] && [ -z "$(usable_version "$ENV_PYTHON")" ]; then
        [ -e "$VENV/pyvenv.cfg" ] || refuse "$VENV exists and is not a virtual environment" "Move it away, or set FEDGMI_VENV."
        say "The interpreter of $VENV no longer works: making it anew."
        rm -rf "$VENV"
    fi
    if [ -n "${PYTHON:-}" ] && [ -e "$VENV" ] && [ "$(usable_version "$PYTHON")" != "$(usable_version "$ENV_PYTHON")" ]; then
        refuse "$VENV holds Python $(usable_version "$ENV_PYTHON"), but PYTHON=$PYTHON was asked for" \
            "Remove that folder, or set FEDGMI_VENV to another one."
    fi
    if [ ! -e "$VENV" ]; then
        find_python
        check_disk
        say "Python: $BASE_PYTHON ($(usable_version "$BASE_PYTHON"))"
        "$BASE_PYTHON" -m venv "$VENV" || refuse "could not make a virtual environment in $VENV"
    fi
    wanted="$(fingerprint "$ENV_PYTHON")"
    if [ "$(cat "$STAMP" 2>/dev/null)" != "$wanted" ]; then
        "$ENV_PYTHON" -c 'import torch' 2>/dev/null || check_disk
        rm -f "$STAMP"
        install_project
        printf '%s\n' "$wanted" >"$STAMP"
    fi
    export ENV_PYTHON
}
