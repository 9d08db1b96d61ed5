#!/usr/bin/env bash
# Makes the one file that trainers install: the Python package with our programs in it, and the libraries that these need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/lib.sh

out=build/wheel built=
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --built) built=$2; shift 2 ;;
    --help | -h)
      cat <<'HELP'
usage: deploy/wheel.sh [--out DIR] [--built DIR]

Builds bucketd, bucketctl, bucket-agent, libbucket_executor and libbucketd_nccl_profiler, strips them, and puts them into a wheel of client/python with the
libraries that they link (gRPC, protobuf, Abseil, OpenSSL, ...), which auditwheel bundles and checks. The file's name says the oldest glibc that
it runs with: that of the machine that it is made on, or older.
  --out    where the wheel goes (build/wheel)
  --built  a build folder with bin/ and lib/ as they are; nothing is installed or built
HELP
      exit 0 ;;
    *) die "what is $1? deploy/wheel.sh --help" ;;
  esac
done
programs=(bucketctl bucketd bucket-agent)
if [ -z "$built" ]; then
  deploy/setup.sh "${programs[@]}" bucket_executor bucketd_nccl_profiler
  built=build
fi
python=$PWD/build/venv/bin/python

step "Programs, stripped"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/native" "$scratch/client"
for file in "${programs[@]/#/bin/}" lib/libbucket_executor.so lib/libbucketd_nccl_profiler.so; do
  [ -r "$built/$file" ] || die "there is no $built/$file"
  strip -o "$scratch/native/$(basename "$file")" "$built/$file"
  chmod 755 "$scratch/native/$(basename "$file")"
done

# Licenses ask for their text beside the code: of the libraries, and of those that are headers alone.
ldd "$scratch"/native/* | awk '$2 == "=>" { print $3 }' | sort -u | xargs realpath \
  | sed -E 's|.*(/[^/]+/[^/]+)$|*\1|' > "$scratch/libraries"  # Debian knows some of them under /lib, some under /usr/lib
{ xargs dpkg-query -S < "$scratch/libraries" | cut -d: -f1
  printf '%s\n' libcli11-dev libsimdjson-dev libtomlplusplus-dev nlohmann-json3-dev; } \
  | grep -vE '^(libc6|libgcc-s1|libstdc\+\+6)$' | sort -u > "$scratch/packages"
while read -r package; do
  printf '==== %s %s\n\n' "$package" "$(dpkg-query -W -f '${Version}' "$package")"
  cat "/usr/share/doc/$package/copyright"
  printf '\n'
done < "$scratch/packages" > "$scratch/native/THIRD_PARTY.txt"
say "$(wc -l < "$scratch/packages") packages of others: $(paste -sd' ' "$scratch/packages")"

step "Wheel"
# Built from a copy: setuptools leaves folders in the source tree.
cp -r proto "$scratch/proto"
cp -rL client/python "$scratch/client/python"
rm -rf "$scratch/client/python/"{build,bucketd.egg-info}
BUCKETD_NATIVE="$scratch/native" quietly "$python" -m pip wheel --no-deps --no-build-isolation --disable-pip-version-check \
  -w "$scratch/plain" "$scratch/client/python"
mkdir -p "$out"
rm -f "$out"/bucketd-*.whl
PATH="$PWD/build/venv/bin:$PATH" quietly "$python" -m auditwheel repair -w "$out" "$scratch/plain/"bucketd-*.whl
made="$(echo "$out"/bucketd-*.whl)"
say "$made, $(du -h --apparent-size "$made" | cut -f1)"
