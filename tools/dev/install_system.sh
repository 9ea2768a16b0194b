#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that the build and the demo need, and only those that are missing.
set -euo pipefail

packages=(
  ccache
  clang-format
  dataset-fashion-mnist
  doctest-dev
  g++
  libboost1.81-dev
  libdnnl-dev
  libfmt-dev
  llvm-19-dev
  make
)
# A Python of one's own brings these along; Debian's has them in packages.
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
python3 -c 'import os, sysconfig; exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
  || packages+=(python3-dev)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "==> Debian packages: all there (${packages[*]})"
  exit 0
fi

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
echo "==> Debian packages: installing ${missing[*]}"
"${as_root[@]}" apt-get -o Acquire::Retries=3 update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
for package in "${missing[@]}"; do
  dpkg-query -W -f='    ${Package} ${Version}\n' "$package"
done
