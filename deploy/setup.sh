#!/usr/bin/env bash
# Installs what bucketd needs, builds it into build/ and makes build/venv. Cheap to run again. quickstart.sh and tests/run.sh call it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/lib.sh

case ${1:-} in
  --help | -h)
    cat <<'HELP'
usage: deploy/setup.sh [TARGET...]

Installs what is missing (Debian packages of deploy/packages.txt, as root; Python packages into build/venv) and builds into build/. Without a
TARGET all is built, tests too; the programs alone are bucketd bucketctl bucket-agent. Debian starts the PostgreSQL, PgBouncer and Prometheus
that tests run: stop them on a machine that serves.
HELP
    exit 0 ;;
  -*) die "what is $1? deploy/setup.sh --help" ;;
esac

step "Debian packages"
mapfile -t wanted < <(grep -v '^#' deploy/packages.txt)
missing=()
for package in "${wanted[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "needs Debian 12 packages, and there is no apt-get here: ${missing[*]}"
  [ "$(id -u)" = 0 ] || die "packages are missing; as root: apt-get install --no-install-recommends ${missing[*]}"
  say "installing ${#missing[@]} packages"
  quietly apt-get update
  DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "${missing[@]}"
else
  say "all ${#wanted[@]} are there"
fi

# Modules are compiled as they are imported: most never are.
pip_install() { quietly build/venv/bin/pip install --disable-pip-version-check --no-compile "$@"; }

step "Python environment (build/venv)"
mkdir -p build
stamp="$(sha256sum deploy/requirements*.txt deploy/setup.sh | sha256sum | cut -c1-16)"
if [ "$(cat build/venv/.bucketd-stamp 2>/dev/null)" != "$stamp" ]; then
  python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || die "needs Python 3.10 to 3.13; this is $(python3 --version)"
  rm -rf build/venv
  python3 -m venv build/venv
  say "installing torch 2.13.0 (a few hundred megabytes on a first run)"
  pip_install torch==2.13.0
  say "installing $(cat deploy/requirements*.txt | grep -vc '^#') more packages"
  pip_install setuptools wheel -r deploy/requirements.txt
  pip_install --no-deps -r deploy/requirements-alone.txt
  quietly build/venv/bin/python client/python/generate_wire.py
  pip_install --no-deps --no-build-isolation -e client/python
  echo "$stamp" > build/venv/.bucketd-stamp
else
  quietly build/venv/bin/python client/python/generate_wire.py
  say "is there"
fi

step "Build (build/bin)"
[ -f build/build.ninja ] || quietly cmake --preset release
# Ninja's own progress line where somebody looks at it; else one line a tenth.
if [ -t 1 ]; then
  cmake --build build --target "${@:-all}"
else
  cmake --build build --target "${@:-all}" 2>&1 | python3 deploy/progress.py
fi
say "built: $(cd build/bin && ls | tr '\n' ' ')"
