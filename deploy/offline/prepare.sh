#!/usr/bin/env bash
# Make `docker compose` usable here and print, as NAME=value lines, which images it is to take: the official ones
# where they are present or can be pulled, else the stand-ins of this folder. Messages go to stderr.
#   deploy/offline/prepare.sh >.env && docker compose up --build --wait
#   prepare.sh --stand-ins     do not even try to pull
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=deploy/offline/lib.sh
. "$here/lib.sh"

OFFICIAL=(TURNKEEPER_REDIS_IMAGE=redis:8 TURNKEEPER_RABBITMQ_IMAGE=rabbitmq:4.2
    TURNKEEPER_PYTHON_IMAGE=python:3.13-slim TURNKEEPER_BUILDER_IMAGE=python:3.13-slim
    TURNKEEPER_PROMETHEUS_IMAGE=prom/prometheus:v3.5.0)
STAND_INS=(TURNKEEPER_REDIS_IMAGE=turnkeeper-base/redis:8 TURNKEEPER_RABBITMQ_IMAGE=turnkeeper-base/rabbitmq:4
    TURNKEEPER_PYTHON_IMAGE=turnkeeper-base/python:3.13 TURNKEEPER_BUILDER_IMAGE=turnkeeper-base/python-wheels:3.13
    TURNKEEPER_PROMETHEUS_IMAGE=turnkeeper-base/prometheus:2)

is_present() { docker image inspect "$1" >/dev/null 2>&1; }

# Pulling the first image tells whether a registry can be reached; without one it fails within moments.
official_can_be_had() {
    local pair image
    for pair in "${OFFICIAL[@]}"; do
        image=${pair#*=}
        is_present "$image" && continue
        say "pulling $image ..."
        timeout "${TURNKEEPER_PULL_SECONDS:-120}" docker pull -q "$image" >&2 || return 1
    done
}

# An image that the caller chose by variable stays chosen.
print_choice() {
    local pair name
    for pair in "$@"; do
        name=${pair%%=*}
        printf '%s=%s\n' "$name" "${!name:-${pair#*=}}"
    done
}

main() {
    mkdir -p "$STATE"
    "$here/engine.sh" up
    if [ "${1:-}" != --stand-ins ] && official_can_be_had; then
        print_choice "${OFFICIAL[@]}"
        return
    fi
    say "no registry answers: taking stand-ins built from Debian packages"
    "$here/images.sh" >&2
    print_choice "${STAND_INS[@]}"
}

main "$@"
