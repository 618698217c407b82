# shellcheck shell=bash
# shellcheck disable=SC2034  # what is set here is read by the scripts that source this file
# Shared by the scripts of this folder: messages, the state folder, and the distribution's own mirror.

STATE="${TURNKEEPER_OFFLINE_STATE:-${XDG_CACHE_HOME:-$HOME/.cache}/turnkeeper/offline}"
RELEASE="${TURNKEEPER_OFFLINE_RELEASE:-trixie}"
DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# What a stand-in was built from is written on it under this label, so that a changed recipe is noticed.
RECIPE_LABEL=io.turnkeeper.recipe

say() { printf 'offline: %s\n' "$*" >&2; }

die() {
    printf 'offline: %s\n' "$*" >&2
    exit 1
}

# timed LABEL COMMAND... : run quietly, say what runs and how long it took; show the output only if it fails.
timed() {
    local label=$1 started=$SECONDS log
    shift
    log=$(mktemp)
    say "$label ..."
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 40 "$log" >&2
        rm -f "$log"
        die "$label failed"
    fi
    rm -f "$log"
    say "$label: $((SECONDS - started)) s"
}

need_root() { [ "$(id -u)" -eq 0 ] || die "$1 needs root: run it with sudo"; }

# Installs the distribution's packages that bring the named programs; starts none of their services.
need_programs() {
    local missing=() pair
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    need_root "installing ${missing[*]}"
    command -v apt-get >/dev/null || die "install first: ${missing[*]}"
    timed "installing ${missing[*]}" without_starting \
        env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}

# Debian starts a service when its package is installed, unless policy-rc.d says 101.
without_starting() {
    local policy=/usr/sbin/policy-rc.d ours=no status=0
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && ours=yes
    fi
    apt-get update || true
    "$@" || status=$?
    [ "$ours" = no ] || rm -f "$policy"
    return "$status"
}

# The Debian mirror that this machine's apt is set up with, so that no other host is asked.
debian_mirror() {
    local mirror
    mirror=${TURNKEEPER_DEBIAN_MIRROR:-}
    [ -n "$mirror" ] || mirror=$(mirrors_of_apt | grep -m1 -E '/debian/?$' || true)
    [ -n "$mirror" ] || die "apt knows no Debian mirror here: set TURNKEEPER_DEBIAN_MIRROR=URL"
    printf '%s\n' "${mirror%/}"
}

mirrors_of_apt() {
    local files=()
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -f "$file" ] && files+=("$file")
    done
    [ "${#files[@]}" -eq 0 ] || sed -nE 's/^deb +(\[[^]]*\] +)?([a-z]+:[^ ]+).*/\2/p' "${files[@]}"
    files=()
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] && files+=("$file")
    done
    [ "${#files[@]}" -eq 0 ] || sed -nE 's/^URIs: *([^ ]+).*/\1/p' "${files[@]}"
}

# What apt was told about proxies, as build arguments that Docker keeps out of the image.
proxy_arguments() {
    local proxy
    proxy=$(apt-config dump 2>/dev/null | sed -nE 's/^Acquire::http::Proxy "(.+)";/\1/p')
    [ -z "$proxy" ] || printf '%s\n' --build-arg "http_proxy=$proxy"
}
