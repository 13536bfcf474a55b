"""`slipstream draft`: heads that draft for a model. Each verb is imported when it is used."""

from __future__ import annotations

from slipstream.cli.verbs import Verb

VERBS = (
    Verb("train", "slipstream.cli.draft_train", "train", "Train a draft head on what a model writes."),
    Verb("eval", "slipstream.cli.draft_eval", "evaluate", "Measure what a draft head reaches on given prompts."),
)
