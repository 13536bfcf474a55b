#!/bin/sh
# Print the first Python that can build and run Slipstream: 3.11 or newer, with venv and the C headers.
# An argument names the one to use.
set -eu

usable() {
    "$1" -c 'import os, sys, sysconfig
import ensurepip, venv
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(0 if sys.version_info >= (3, 11) and os.path.exists(headers) else 1)' >/dev/null 2>&1
}

why_not() {
    "$1" -c 'import os, sys, sysconfig
version = ".".join(map(str, sys.version_info[:3]))
reasons = [] if sys.version_info >= (3, 11) else ["older than 3.11"]
try:
    import ensurepip, venv
except ImportError:
    reasons.append("no venv module (on Debian: apt-get install python3-venv)")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    reasons.append("no C headers (on Debian: apt-get install python3-dev)")
print("  " + sys.executable + " " + version + ": " + ", ".join(reasons))' 2>/dev/null || true
}

if [ "$#" -gt 0 ]; then candidates="$1"; else
    candidates="python3 python3.13 python3.12 python3.11 python3.14 python"
fi
for name in $candidates; do
    if usable "$name"; then
        echo "$name"
        exit 0
    fi
done
echo "error: Slipstream needs Python 3.11 or newer with its venv module and C headers. Found:" >&2
for name in $candidates; do why_not "$name" >&2; done
echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2
exit 1
