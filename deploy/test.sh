#!/usr/bin/env bash
# Everything that must hold before a commit lands, in the same environment as the demo.
#
#   bash deploy/test.sh               static checks, fast tests, slow tests, coverage of secure/
#   bash deploy/test.sh --fast        static checks and fast tests
#   bash deploy/test.sh --slow        slow tests only
#   bash deploy/test.sh ARGUMENTS …   pytest with these arguments, nothing else
#
# All parts run even when one fails; the last lines name those that failed. FEDGMI_TEST_WORKERS: processes for the
# tests (default: the machine's cores, at most 4).
set -uo pipefail

# shellcheck source-path=SCRIPTDIR source=_environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/_environment.sh"

parts=all
case "${1:-}" in
-h | --help)
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
--fast | --slow)
    parts="${1#--}"
    shift
    [ $# -eq 0 ] || refuse "--$parts takes no further arguments" "For pytest's own, leave it out."
    ;;
?*) parts=pytest ;;
esac

prepare_environment
cd "$PROJECT_ROOT" || exit 2

# One thread a process: the processes are the parallelism, and results do not depend on the machine's cores.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONUNBUFFERED=1

if [ "$parts" = pytest ]; then
    exec "$ENV_PYTHON" -m pytest "$@"
fi

cores="$("$ENV_PYTHON" -c 'import os; print(min(4, os.cpu_count() or 1))')"
workers="${FEDGMI_TEST_WORKERS:-$cores}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
export COVERAGE_FILE="$scratch/coverage"
failed=()
closings=()

# part NAME COMMAND …: run it, remember a failure, say how long it took.
part() {
    local name="$1" start=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    if "$@"; then
        printf -- '--- %s: ok (%d s)\n' "$name" $((SECONDS - start))
    else
        failed+=("$name")
        printf -- '--- %s: FAILED (%d s)\n' "$name" $((SECONDS - start))
    fi
}

# suite NAME ARGUMENTS …: pytest, with its closing line kept for the end.
suite() {
    local log="$scratch/$1.log" status
    shift
    "$ENV_PYTHON" -m pytest --durations=10 -n "$workers" --dist loadfile --cov=secure --cov-report= --cov-fail-under=0 "$@" | tee "$log"
    status=${PIPESTATUS[0]}
    closings+=("$(tail -n 1 "$log")")
    return "$status"
}

coverage_of_secure() {
    "$ENV_PYTHON" -m coverage report --fail-under=95
}

if [ "$parts" != slow ]; then
    part "ruff" "$ENV_PYTHON" -m ruff check .
    part "mypy --strict secure" "$ENV_PYTHON" -m mypy --strict secure
    part "import rules" "$ENV_PYTHON" -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'
    part "fast tests" suite fast -m "not slow"
fi
if [ "$parts" != fast ]; then
    part "slow tests" suite slow --cov-append -m slow
fi
if [ "$parts" = all ]; then
    part "coverage of secure" coverage_of_secure
fi

printf '\n'
for line in ${closings[@]+"${closings[@]}"}; do printf '%s\n' "$line"; done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
