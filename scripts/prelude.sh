# shellcheck shell=bash
# shellcheck disable=SC2034 # what is set here is used by the scripts that read it
# Read by the other scripts: how they speak, measure, and find what they stand on.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# Daemons and mount tools live in sbin, which the PATH of a plain user may lack.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

readonly EXIT_MISSING=3 # something the machine has to have is not there

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit "$EXIT_MISSING"
}

is_root() { [[ $(id -u) -eq 0 ]]; }

# Debian, Ubuntu and what calls itself like one of them.
is_debian() {
  [[ -r /etc/os-release ]] && command -v apt-get >/dev/null &&
    (. /etc/os-release && [[ " ${ID:-} ${ID_LIKE:-} " == *" debian "* ]])
}

run_apt() {
  # Descriptor 9 is a lock of ours: no service that a package starts may inherit it.
  DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=2 "$@" </dev/null 9>&-
}

# Install Debian packages; what apt says goes to a file that is named only on failure.
apt_install() {
  local log
  log=$(mktemp "${TMPDIR:-/tmp}/caisson-apt.XXXXXX")
  say "installing $* (may take a minute) …"
  # One unreachable source must not stop the rest: the installation itself is the judge.
  run_apt update >"$log" 2>&1 || true
  if ! run_apt install --no-install-recommends "$@" >>"$log" 2>&1; then
    die "apt-get could not install $*: $(grep -m1 '^E: ' "$log" || tail -n1 "$log"); all of it: $log"
  fi
  rm -f "$log"
}

now_ms() { date +%s%3N; }

# Seconds since a moment given by now_ms, with one decimal.
seconds_since() {
  local ms=$(($(now_ms) - $1))
  printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100))
}

# Choose a Docker client whose engine answers: a client can be too new for an old engine,
# and then Debian's own may lie beside it. Sets docker_cli and server_version.
find_engine() {
  local candidate status
  docker_cli='' server_version=''
  while read -r candidate; do
    status=0
    server_version=$(timeout 10 "$candidate" version --format '{{.Server.Version}}' 2>/dev/null) ||
      status=$?
    ((status != 124)) || return 1 # a stuck engine is stuck for every client
    ((status == 0)) || continue
    docker_cli=$candidate
    return 0
  done < <({ type -ap docker; ls /usr/bin/docker; } 2>/dev/null | xargs -r -d '\n' realpath |
    awk '!seen[$0]++')
  return 1
}

# The address that the client would use.
engine_address() {
  if [[ -n ${DOCKER_HOST:-} ]]; then
    echo "$DOCKER_HOST"
  else
    docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null ||
      echo unix:///var/run/docker.sock
  fi
}

# A context other than the default is made explicit, so that the client, our own code and every
# child mean the same engine.
use_engine_address() {
  DOCKER_HOST=$(engine_address)
  export DOCKER_HOST
}
