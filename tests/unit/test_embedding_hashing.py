from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerda_pg.embedding import HashingEmbedder, embed_documents
from zerda_pg.errors import InvalidContentError

EMBEDDER = HashingEmbedder()

PINNED = [0.592356, 0.226258, 0.325862, 0.187537, -0.348262, -0.141509, -0.550453, 0.110704]


def cosine(left: str, right: str) -> float:
    first, second = EMBEDDER.embed([left, right])
    return float(first @ second)


@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("the deployment failed", "deployment failed again", "roses and tulips"),
        ("deploying the service", "the service was deployed", "cooking the dinner"),
        ("prefers dark roast coffee", "which coffee roast?", "the cat sleeps"),
        ("部署失败了", "部署又失败", "她喜欢咖啡"),
        ("デプロイに失敗しました", "デプロイが失敗", "猫が寝ている"),
        ("배포에 실패했습니다", "배포 실패", "커피를 좋아한다"),
        ("развёртывание не удалось", "неудачное развёртывание", "кошка спит"),
        ("🙂🎉", "🎉", "🚗"),
        ("get_user_by_id", "get_user_by_name", "render(template)"),
    ],
)
def test_shared_words_make_texts_similar(text: str, near: str, far: str) -> None:
    assert cosine(text, near) > cosine(text, far) + 0.15


def test_case_width_and_composition_do_not_matter() -> None:
    assert cosine("Crème Brûlée", "cre\u0300me bru\u0302le\u0301e") == pytest.approx(1.0, abs=1e-6)
    assert cosine("ＡＢＣ １２３", "abc 123") == pytest.approx(1.0, abs=1e-6)


def test_unrelated_words_hardly_meet() -> None:
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in ("ano", "eri", "ulo") for c in ("tem", "sip")]
    vectors = EMBEDDER.embed(words)
    off_diagonal = (vectors @ vectors.T)[~np.eye(len(words), dtype=bool)]
    assert np.abs(off_diagonal).mean() < 0.12


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5))
def test_any_text_has_a_unit_vector(texts: list[str]) -> None:
    texts = [text for text in texts if text.strip()]
    result = embed_documents(HashingEmbedder(8), texts)
    assert result.vectors.shape == (len(texts), 8)
    assert result.truncated == [False] * len(texts)


@pytest.mark.parametrize("text", ["...", "\u200b", "\x00", "-", "a" * 100_000, "中" * 5_000])
def test_odd_texts(text: str) -> None:
    assert np.linalg.norm(EMBEDDER.embed([text])[0]) == pytest.approx(1.0, abs=1e-5)


def test_a_vector_does_not_depend_on_its_neighbours() -> None:
    texts = ["one text", "another one", "one"]
    alone = np.concatenate([EMBEDDER.embed([text]) for text in texts])
    np.testing.assert_array_equal(EMBEDDER.embed(texts), alone)


def test_the_same_in_every_process() -> None:
    code = (
        "from zerda_pg.embedding import HashingEmbedder\n"
        "e = HashingEmbedder(64); print(e.fingerprint, e.embed(['same words here'])[0].tobytes())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1


def test_vectors_of_this_version() -> None:
    # A change of these needs another version, for it makes stored vectors worthless.
    vector = HashingEmbedder(8).embed(["Prefers dark roast coffee"])[0]
    np.testing.assert_allclose(vector, PINNED, atol=1e-6)


def test_fingerprint_tells_the_dimensions() -> None:
    assert HashingEmbedder(384).fingerprint == EMBEDDER.fingerprint
    assert HashingEmbedder(64).fingerprint != EMBEDDER.fingerprint


@pytest.mark.parametrize("dimensions", [0, -1, 7, 16_001])
def test_dimensions_are_checked(dimensions: int) -> None:
    with pytest.raises(ValueError, match=f"dimensions must be from 8 to 16000, got {dimensions}"):
        HashingEmbedder(dimensions)


def test_blank_text_is_refused() -> None:
    with pytest.raises(InvalidContentError):
        EMBEDDER.embed(["  "])
