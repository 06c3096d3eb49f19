# shellcheck shell=bash
# Programs that some tests drive and pip cannot install: Debian's Chromium and the broker Mosquitto. Sourced, never run.

# Install what is missing, with apt where that is allowed (root, or sudo without a password). Name in
# FEDGMI_REQUIRED_PROGRAMS what is there now: without it, tests that need it fail; without the name, they are skipped.
install_programs() {
    local program missing=() found=() apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
    for program in chromium mosquitto; do
        has_program "$program" || missing+=("$program")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        if ! command -v apt-get >/dev/null; then
            printf 'no apt-get here: not installed: %s\n' "${missing[*]}"
        elif [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
            printf 'neither root nor sudo without a password: not installed: %s\n' "${missing[*]}"
        else
            [ "$(id -u)" -eq 0 ] || apt=(sudo -n "${apt[@]}")
            install_with_apt
        fi
    fi
    for program in chromium mosquitto; do
        if has_program "$program"; then
            found+=("$program")
        else
            printf 'without %s: the tests that need it are skipped\n' "$program"
        fi
    done
    export FEDGMI_REQUIRED_PROGRAMS="${found[*]-}"
}

# Debian puts servers where only root's PATH looks.
has_program() { PATH="$PATH:/usr/sbin" command -v "$1" >/dev/null; }

# Install "missing" with "apt", one after the other, so that one that cannot be had does not cost the other.
install_with_apt() {
    local program log options=(-qq -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=60)
    log="$(mktemp)"
    if ! timeout 180 "${apt[@]}" "${options[@]}" update >"$log" 2>&1; then
        printf 'apt-get update failed:\n'
        tail -n 3 "$log"
    fi
    for program in "${missing[@]}"; do
        if timeout 600 "${apt[@]}" "${options[@]}" -y --no-install-recommends install "$program" \
            >"$log" 2>&1 </dev/null; then
            printf 'installed: %s\n' "$program"
        else
            printf 'apt-get install %s FAILED:\n' "$program"
            tail -n 5 "$log"
        fi
    done
    rm -f "$log"
}
