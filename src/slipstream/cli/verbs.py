"""The verbs of the command line. A verb is one function (or typer app, or tuple of verbs) in one module, imported when
it is used."""

from __future__ import annotations

from slipstream.lean import dataclass


@dataclass(frozen=True)
class Verb:
    name: str
    module: str
    attribute: str
    help: str


VERBS: tuple[Verb, ...] = (
    Verb("chat", "slipstream.cli.chat", "chat", "Talk with a model."),
    Verb("generate", "slipstream.cli.generate", "generate", "Continue a prompt, or a file of prompts."),
    Verb("serve", "slipstream.cli.serve", "serve", "Serve a model over HTTP, as OpenAI's API."),
    Verb("pull", "slipstream.cli.pull", "pull", "Download a model, or list the known ones (--list)."),
    Verb("inspect", "slipstream.cli.inspect", "inspect", "Show what a model is and the memory it needs."),
    Verb("bench", "slipstream.cli.bench", "VERBS", "Measure servers and models: serve, compare, throughput ..."),
    Verb("draft", "slipstream.cli.draft", "VERBS", "Train a head that drafts for a model."),
    Verb("features", "slipstream.cli.features", "features", "Show which features work together."),
)
