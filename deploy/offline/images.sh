#!/usr/bin/env bash
# Build stand-ins for the base images from Debian packages, for places that reach no container registry:
#   turnkeeper-base/{debian:trixie,redis:8,rabbitmq:4,python:3.13,python-wheels:3.13,prometheus:2}
# What is already there and was built from the same recipe stays: a second run takes a second.
#   images.sh [NAME...]   redis rabbitmq python wheels prometheus (default: all)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../.." && pwd)
# shellcheck source=deploy/offline/lib.sh
. "$here/lib.sh"

BASE_TAG="turnkeeper-base/debian:$RELEASE"
declare -A TAGS=([redis]=turnkeeper-base/redis:8 [rabbitmq]=turnkeeper-base/rabbitmq:4
    [python]=turnkeeper-base/python:3.13 [wheels]=turnkeeper-base/python-wheels:3.13
    [prometheus]=turnkeeper-base/prometheus:2)

recipe_of() { cat "$@" 2>/dev/null | sha256sum | cut -c1-16; }

is_current() { # TAG RECIPE
    [ "$(docker image inspect -f "{{index .Config.Labels \"$RECIPE_LABEL\"}}" "$1" 2>/dev/null)" = "$2" ]
}

build_base() {
    # what the base consists of is named in this one line: a change of it changes the label
    local recipe="minbase-$RELEASE" work
    is_current "$BASE_TAG" "$recipe" && return
    need_root "debootstrap"
    need_programs debootstrap=debootstrap
    work=$(mktemp -d "$STATE/rootfs.XXXXXX")
    timed "debootstrap $RELEASE (about a minute)" \
        debootstrap --variant=minbase --keyring="$DEBIAN_KEYRING" "$RELEASE" "$work" "$(debian_mirror)"
    rm -rf "$work"/var/cache/apt/archives/*.deb "$work"/var/lib/apt/lists/* "$work"/usr/share/{doc,man,locale}/*
    timed "importing $BASE_TAG" import_base "$work" "$recipe"
    rm -rf "$work"
}

import_base() { # ROOT RECIPE
    tar -C "$1" -c . | docker import --change "LABEL $RECIPE_LABEL=$2" - "$BASE_TAG"
}

build_image() { # NAME CONTEXT BASE RECIPE_FILE...
    local name=$1 context=$2 base=$3 recipe tag=${TAGS[$1]} proxies=()
    shift 3
    recipe=$(printf '%s' "$(docker image inspect -f '{{.Id}}' "$base")" | cat - "$@" | sha256sum | cut -c1-16)
    is_current "$tag" "$recipe" && return
    mapfile -t proxies < <(proxy_arguments)
    # the host's network: the mirror may be reachable from there only
    timed "building $tag" env DOCKER_BUILDKIT=0 docker build --network host --force-rm "${proxies[@]}" \
        --build-arg "BASE=$base" --label "$RECIPE_LABEL=$recipe" -t "$tag" \
        -f "$here/images/$name.Dockerfile" "$context"
}

build_simple() { # NAME
    local empty="$STATE/empty"
    mkdir -p "$empty"
    build_image "$1" "$empty" "$BASE_TAG" "$here/images/$1.Dockerfile"
}

# The project's own environment has pip; a bare Debian's python3 may not.
python_with_pip() {
    local candidate
    for candidate in "$project/.venv/bin/python" python3; do
        "$candidate" -m pip --version >/dev/null 2>&1 && printf '%s\n' "$candidate" && return
    done
    die "no Python with pip: run 'make install' first"
}

build_wheels() {
    local files=("$here/images/wheels.Dockerfile" "$project/pyproject.toml" "$here/wheels.py")
    [ ! -f "$project/constraints.txt" ] || files+=("$project/constraints.txt")
    local context="$STATE/wheels-context" stamp
    stamp=$(recipe_of "${files[@]}")
    if [ "$(cat "$context/stamp" 2>/dev/null)" != "$stamp" ]; then
        mkdir -p "$context"
        timed "fetching wheels for Python 3.13" "$(python_with_pip)" "$here/wheels.py" "$project" "$context/wheels"
        echo "$stamp" >"$context/stamp"
    fi
    build_image wheels "$context" "${TAGS[python]}" "${files[@]}"
}

main() {
    local names=("$@") name
    [ "${#names[@]}" -gt 0 ] || names=(redis rabbitmq python wheels prometheus)
    mkdir -p "$STATE"
    "$here/engine.sh" up
    build_base
    for name in "${names[@]}"; do
        [ -n "${TAGS[$name]:-}" ] || die "no stand-in is called $name; there are: ${!TAGS[*]}"
        if [ "$name" = wheels ]; then build_wheels; else build_simple "$name"; fi
    done
}

main "$@"
