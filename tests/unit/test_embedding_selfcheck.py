from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from zerda_pg.embedding import HashingEmbedder
from zerda_pg.embedding.checked import CheckedModels, sha256_of
from zerda_pg.embedding.protocol import Kind, Vectors
from zerda_pg.embedding.selfcheck import check_model
from zerda_pg.errors import EmbeddingModelError


class Sound:
    """What passes: it hashes words."""

    name = "sound"
    fingerprint = "0"
    dimensions = 384
    max_tokens = 256

    def __init__(self) -> None:
        self._hashing = HashingEmbedder()

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        return self._hashing.embed(texts)


class Scrambled(Sound):
    """What weights under other names give: every text somewhere else, at norm 1."""

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        seeds = [zlib.crc32(text.encode()) for text in texts]
        vectors = np.stack([np.random.default_rng(s).standard_normal(384) for s in seeds])
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(unit, dtype=np.float32)


class Short(Sound):
    """A window of half the size it states."""

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        return super().embed([" ".join(text.split()[:128]) for text in texts])


class Restless(Sound):
    calls = 0

    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        self.calls += 1
        return np.roll(super().embed(texts), self.calls, axis=1)


class Contrary(Sound):
    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        return super().embed([text.replace("roses", "deployment error failed") for text in texts])


class Double(Sound):
    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        return super().embed(texts).astype(np.float64)


class Long(Sound):
    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        return super().embed(texts) * np.float32(1.01)


class Narrow(Sound):
    def embed(self, texts: Sequence[str], *, kind: Kind = "document") -> Vectors:
        return super().embed(texts)[:, :383]


def test_a_sound_model_passes() -> None:
    check_model(Sound(), "replace it")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Short, "word 150 of a text changes nothing"),
        (Restless, "different vectors"),
        (Contrary, "an unrelated text is as near"),
        (Double, "float64"),
        (Long, "norm 1.01"),
        (Narrow, r"\(3, 383\)"),
    ],
)
def test_an_unsound_model_fails(model: type[Sound], message: str) -> None:
    with pytest.raises(EmbeddingModelError, match=f"'sound' fails its self-check: .*{message}"):
        check_model(model(), "replace it")


def test_scrambled_weights_are_found_by_known_cosines() -> None:
    with pytest.raises(EmbeddingModelError, match=r"self-check: .*; replace it"):
        check_model(Scrambled(), "replace it", cosines=[("cat", "kitten", 0.79)])


def test_a_short_window_is_not_probed_beyond_its_end() -> None:
    model = Short()
    model.max_tokens = 128
    check_model(model, "replace it")


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.bin"
    file.write_bytes(b"weights")
    return file


def test_notes_are_kept_from_process_to_process(tmp_path: Path, model_file: Path) -> None:
    assert CheckedModels(tmp_path / "cache").recall([model_file], ["numpy"]) is None
    CheckedModels(tmp_path / "cache").remember([model_file], ["numpy"], {"dimensions": 3})
    assert CheckedModels(tmp_path / "cache").recall([model_file], ["numpy"]) == {"dimensions": 3}


def test_notes_end_with_the_state_of_the_file(tmp_path: Path, model_file: Path) -> None:
    checked = CheckedModels(tmp_path / "cache")
    checked.remember([model_file], ["numpy"], {})
    model_file.write_bytes(b"others!!")
    assert checked.recall([model_file], ["numpy"]) is None


def test_notes_end_with_the_version_of_a_library(
    tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = CheckedModels(tmp_path / "cache")
    checked.remember([model_file], ["numpy"], {})
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99")
    assert checked.recall([model_file], ["numpy"]) is None


def test_a_library_without_metadata_is_no_error(tmp_path: Path, model_file: Path) -> None:
    assert CheckedModels(tmp_path).recall([model_file], ["no-such-distribution"]) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"identity": ["other"]}', "\x00"])
def test_a_damaged_note_is_none(tmp_path: Path, model_file: Path, content: str) -> None:
    checked = CheckedModels(tmp_path / "cache")
    checked.remember([model_file], [], {"dimensions": 3})
    (note,) = (tmp_path / "cache").rglob("*.json")
    assert json.loads(note.read_text())["dimensions"] == 3
    note.write_text(content)
    assert checked.recall([model_file], []) is None


def test_a_directory_that_cannot_be_written_breaks_nothing(
    tmp_path: Path, model_file: Path
) -> None:
    checked = CheckedModels(model_file / "below a file")
    checked.remember([model_file], [], {})
    assert checked.recall([model_file], []) is None


def test_a_user_without_home_goes_without_notes(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.setattr(Path, "home", no_home)
    checked = CheckedModels()
    checked.remember([model_file], [], {})
    assert checked.recall([model_file], []) is None


def test_hash_of_a_file(model_file: Path) -> None:
    assert sha256_of(model_file) == hashlib.sha256(b"weights").hexdigest()
