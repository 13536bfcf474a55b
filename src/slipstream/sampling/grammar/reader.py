"""The process that reads grammars before the engine does: `python -P -m slipstream.sampling.grammar.reader`.

A grammar of a few hundred characters can keep llguidance busy for hours (repeated or intersected regular expressions
grow without a limit that it checks), and a thread cannot be stopped there. A process can. Lines of JSON come and go:
first the vocabulary, then per grammar its source, answered by what is wrong with it, or "".
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys

from slipstream.sampling.grammar.llguidance_calls import named_tokens, new_matcher

_IDLE = 60.0  # seconds without a grammar, after which the process ends
_MAX_MEMORY = 1 << 30  # bytes of address space


def main() -> None:
    read = sys.stdin.buffer
    vocabulary = json.loads(read.readline())
    tokens = named_tokens(
        vocabulary["size"], {int(i): name.encode("latin-1") for i, name in vocabulary["special"].items()}
    )
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what llguidance says when memory ends is no news
    _say(b"\n")
    while select.select([read], [], [], _IDLE)[0]:
        line = read.readline()
        if not line:
            return
        task = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])  # of processor time; its signal ends the process
        wrong = new_matcher(tokens, task["source"]).get_error()
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _say(json.dumps(wrong).encode() + b"\n")


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
