#!/usr/bin/env bash
# Make `docker` and `docker compose` answer on this machine: start dockerd if no engine does, and fetch Debian's
# Compose plugin if there is none. Doing nothing takes under a second.
#   engine.sh up      (default) an engine and Compose answer afterwards
#   engine.sh down    stop the engine if this script started it
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=deploy/offline/lib.sh
. "$here/lib.sh"

PID_FILE="$STATE/dockerd.pid"
LOG_FILE="$STATE/dockerd.log"

answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

await_engine() {
    local deadline=$((SECONDS + 30))
    until answers; do
        kill -0 "$(cat "$PID_FILE")" 2>/dev/null || return 1
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.3
    done
}

# Each line is one way to run the daemon; the first that works on this kernel is taken.
start_engine() {
    need_root "starting the container engine"
    need_programs docker=docker.io dockerd=docker.io iptables=iptables
    local options
    for options in "" "--iptables=false --ip6tables=false" "--storage-driver=vfs" \
        "--storage-driver=vfs --iptables=false --ip6tables=false"; do
        say "starting dockerd ${options:-(defaults)} ..."
        # shellcheck disable=SC2086  # several options on purpose
        setsid dockerd $options >"$LOG_FILE" 2>&1 </dev/null &
        echo $! >"$PID_FILE"
        if await_engine; then
            say "dockerd answers, log in $LOG_FILE"
            return
        fi
        stop_engine
    done
    tail -n 20 "$LOG_FILE" >&2
    die "no way of starting dockerd worked here, see above"
}

stop_engine() {
    [ -f "$PID_FILE" ] || return 0
    local pid deadline=$((SECONDS + 30))
    pid=$(cat "$PID_FILE")
    if is_dockerd "$pid"; then
        kill "$pid"
        while is_dockerd "$pid" && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.3; done
        is_dockerd "$pid" && die "dockerd ($pid) does not stop"
        say "dockerd stopped"
    fi
    rm -f "$PID_FILE"
}

# A process id may have gone to somebody else since the file was written.
is_dockerd() { grep -qsx dockerd "/proc/$1/comm"; }

has_compose() { docker compose version >/dev/null 2>&1; }

# Debian 12 has no Compose v2; its successor's package is one static binary that runs here too.
fetch_compose() {
    need_programs apt-get=apt dpkg-deb=dpkg
    local root="$STATE/apt" plugins="${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins"
    mkdir -p "$root"/{lists/partial,archives/partial,etc} "$root/package" "$plugins"
    : >"$root/status"
    printf 'deb [signed-by=%s] %s %s main\n' "$DEBIAN_KEYRING" "$(debian_mirror)" "$RELEASE" >"$root/sources.list"
    timed "reading $RELEASE's package lists" apt_in "$root" update
    (cd "$root/archives" && timed "fetching docker-compose" apt_in "$root" download docker-compose)
    dpkg-deb -x "$root"/archives/docker-compose_*.deb "$root/package"
    install -m 755 "$(find "$root/package" -type f -name docker-compose -path '*cli-plugins*' | head -n1)" \
        "$plugins/docker-compose"
    rm -rf "$root"
    has_compose || die "the Compose plugin was installed in $plugins, but docker does not take it"
    say "$(docker compose version)"
}

# An apt of its own: this machine's lists, sources and packages stay as they are.
apt_in() {
    local root=$1
    shift
    apt-get -q -o Dir::State::status="$root/status" -o Dir::State::lists="$root/lists" \
        -o Dir::Cache="$root" -o Dir::Cache::archives="$root/archives" -o Dir::Etc::sourcelist="$root/sources.list" \
        -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=false -o APT::Sandbox::User=root "$@"
}

main() {
    mkdir -p "$STATE"
    case ${1:-up} in
    up)
        answers || start_engine
        has_compose || fetch_compose
        ;;
    down) stop_engine ;;
    *) die "unknown command $1: up or down" ;;
    esac
}

main "$@"
