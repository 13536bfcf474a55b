"""Makes a folder from a GGUF file's configuration and tokenizer, for servers that do not read the file itself.

    .venv-vllm/bin/python benchmarks/workers/gguf_folder.py MODEL.gguf FOLDER

There are no weights in it: with random ones (`--load-format dummy`) the shapes, and therefore the work, are the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_config(model: str, folder: str) -> None:
    """Raises SystemExit for a family whose class is not known here."""
    settings = load_gguf_checkpoint(model)["config"]  # type: ignore[no-untyped-call]
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    if config.model_type not in ARCHITECTURES:
        raise SystemExit(f"{config.model_type} models cannot be made from a GGUF file here: {model}")
    config.architectures = [ARCHITECTURES[config.model_type]]
    config.save_pretrained(folder)


def write_tokenizer(model: str, folder: str) -> None:
    path = Path(model)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)


if __name__ == "__main__":
    write_config(sys.argv[1], sys.argv[2])
    write_tokenizer(sys.argv[1], sys.argv[2])
