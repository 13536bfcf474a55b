#!/usr/bin/env bash
# Sees to it that the tests of the web page find a Chromium: installs Debian's where there is none and apt may be used.
# Never fails: without a browser the tests are left out, and `make test` says so.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
if compgen -G "$HOME/.cache/ms-playwright/chromium-*/chrome-linux*/chrome" >/dev/null; then exit 0; fi

if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "No Chromium here, and no right to install one: the tests of the web page will be left out." >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install --yes --no-install-recommends -qq chromium >/dev/null \
  || echo "Chromium could not be installed: the tests of the web page will be left out." >&2
