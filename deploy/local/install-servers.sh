#!/bin/sh
# Install the distribution's Redis and RabbitMQ for the engine `local`, without letting them start.
#   install-servers.sh          install what is missing; does nothing, at once, if nothing is
#   install-servers.sh --check  only say what is missing; ends 1 if something is
# Needs apt and root, or sudo that asks for no password; else it says in one line what to type, and ends 1.
set -eu

COMMAND='apt-get install -y --no-install-recommends redis-server rabbitmq-server'
POLICY=/usr/sbin/policy-rc.d
KEPT=$POLICY.before-turnkeeper
MARK='made by turnkeeper, for the time of one installation'
changing_policy=

say() { printf 'install-servers: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# Ordinary users often have no sbin in their PATH.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

has_redis() { command -v redis-server >/dev/null; }
has_rabbitmq() {
    for script in /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server \
        /opt/rabbitmq/rabbitmq_server-*/sbin/rabbitmq-server \
        /usr/local/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server; do
        [ -x "$script" ] && return 0
    done
    return 1
}

missing() {
    has_redis || printf 'redis-server '
    has_rabbitmq || printf 'rabbitmq-server '
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}

# A package's own scripts ask this file whether they may start the service: 101 means no. One that is there already is
# the administrator's: it is moved aside for the time and put back.
forbid_starting() {
    changing_policy=yes
    if [ -e "$POLICY" ] || [ -L "$POLICY" ]; then
        as_root mv "$POLICY" "$KEPT"
    fi
    printf '#!/bin/sh\n# %s\nexit 101\n' "$MARK" | as_root tee "$POLICY" >/dev/null
    as_root chmod 755 "$POLICY"
}

allow_starting() {
    [ -n "$changing_policy" ] || return 0
    if grep -qs "$MARK" "$POLICY"; then as_root rm -f "$POLICY"; fi
    if [ -e "$KEPT" ] || [ -L "$KEPT" ]; then as_root mv "$KEPT" "$POLICY"; fi
    changing_policy=
}

# Nor may they start at the next boot: the machine's owner did not ask for two servers.
keep_disabled() {
    command -v systemctl >/dev/null || return 0
    for unit in $1; do
        as_root systemctl disable --quiet "$unit.service" 2>/dev/null || true
    done
}

wanted=$(missing)
[ -n "$wanted" ] || exit 0
[ "${1:-}" != --check ] || die "missing: ${wanted% }; install with: $COMMAND"
may_install || die "missing: ${wanted% }; install with: $COMMAND"

trap 'allow_starting' EXIT
trap 'exit 130' INT TERM HUP
forbid_starting
say "installing ${wanted% }, not started (apt-get install -y --no-install-recommends ${wanted% })"
# shellcheck disable=SC2086  # a list of package names
if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $wanted >&2; then
    # A machine that was never updated knows no packages, or packages that are gone.
    as_root apt-get update -q >&2
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $wanted >&2
fi
allow_starting
keep_disabled "$wanted"
[ -z "$(missing)" ] || die "apt-get ended, but still missing: $(missing)"
say "installed ${wanted% }; neither runs nor starts at boot"
