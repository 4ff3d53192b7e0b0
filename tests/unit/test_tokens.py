from __future__ import annotations

import base64
import json
import random
import uuid
from typing import Any

import pytest

from zerda_pg import tokens
from zerda_pg.errors import ConfigError, MissingExtraError
from zerda_pg.tokens import estimate_tokens, resolve_counter, seed_token_estimate

ENGLISH = """\
When the shipment finally arrived on Thursday, half of the crates had been opened and taped shut
again. Nobody at the warehouse could say who had done it, or why. Margaret photographed each label,
wrote down the weights, and compared them with the bill of lading; three numbers didn't match. "We
should call the carrier before we unpack anything else," she told the new clerk, who was already
looking for a knife. Two hours later the insurance company asked for exactly those photographs.
"""

CODE = '''\
class RetryingClient:
    """Calls a service and retries what is worth retrying."""

    def __init__(self, base_url: str, *, max_attempts: int = 3, timeout_seconds: float = 2.5):
        self.base_url = base_url.rstrip("/")
        self._max_attempts = max_attempts
        self._session = HttpSession(timeout=timeout_seconds)

    def fetch_user(self, user_id: int) -> dict[str, object]:
        for attempt in range(self._max_attempts):
            response = self._session.get(f"{self.base_url}/users/{user_id}")
            if response.status_code == 503 and attempt + 1 < self._max_attempts:
                time.sleep(0.1 * 2**attempt)
                continue
            response.raise_for_status()
            return response.json()
        raise ServiceUnavailable(self.base_url)
'''

CHINESE = """\
周四货物终于到了，可是有一半的箱子已经被人打开，又重新用胶带封上。仓库里没有人知道是谁干的，也不知道为什么。
她给每一个标签拍了照片，记下重量，再和提货单上的数字核对，发现有三个对不上。新来的同事已经在找刀了，
她却说，在拆开别的东西之前，应该先给运输公司打电话。两个小时以后，保险公司要的正是这些照片。
"""

JAPANESE = """\
木曜日にようやく荷物が届きましたが、箱の半分はすでに開けられ、テープで貼り直されていました。
倉庫の誰も、誰が何のためにそうしたのか分かりませんでした。彼女はラベルを一枚ずつ撮影し、重さを書きとめ、
送り状と照らし合わせたところ、三つの数字が合いませんでした。新しいスタッフはもうカッターを探していましたが、
彼女は、ほかの箱を開ける前に運送会社へ電話したほうがいいと言いました。
"""

KOREAN = """\
목요일에 드디어 화물이 도착했지만 상자의 절반은 이미 열렸다가 다시 테이프로 봉해져 있었다.
창고에서는 아무도 누가 왜 그랬는지 알지 못했다. 그녀는 라벨을 하나하나 사진으로 찍고
무게를 적은 다음 송장과 비교해 보았는데 숫자 세 개가 맞지 않았다. 새로 온 직원은 벌써 칼을
찾고 있었지만, 그녀는 다른 상자를 뜯기 전에 먼저 운송 회사에 전화해야 한다고 말했다.
"""

RUSSIAN = """\
В четверг груз наконец прибыл, но половина ящиков была вскрыта и снова заклеена. Никто на складе не
мог сказать, кто это сделал и зачем. Она сфотографировала каждую этикетку, записала вес и сверила
цифры с накладной: три из них не совпали. Через два часа страховая компания попросила эти снимки.
"""

_random = random.Random(7)


def _record(number: int) -> dict[str, Any]:
    return {
        "id": str(uuid.UUID(int=_random.getrandbits(128))),
        "name": f"customer_{number}",
        "active": number % 2 == 0,
        "balance": round(_random.random() * 1000, 2),
        "tags": ["new", "priority"],
        "created_at": f"2025-03-{number % 28 + 1:02d}T10:15:00Z",
    }


_RECORDS = [_record(number) for number in range(40)]

SAMPLES = {
    "english": ENGLISH,
    "code": CODE,
    "json": json.dumps(_RECORDS),
    "json, compact": json.dumps(_RECORDS, separators=(",", ":")),
    "json, indented": json.dumps(_RECORDS, indent=2),
    "chinese": CHINESE,
    "japanese": JAPANESE,
    "korean": KOREAN,
    "russian": RUSSIAN,
    "uuids": "\n".join(str(uuid.UUID(int=_random.getrandbits(128))) for _ in range(100)),
    "base64": base64.b64encode(_random.randbytes(3000)).decode(),
    "hexadecimal": _random.randbytes(3000).hex(),
    "numbers": " ".join(str(_random.randrange(10**9)) for _ in range(300)),
    "emoji": "Shipped it 🚀🎉 thanks everyone 🙏🏽 👩‍👩‍👧‍👦 ❤️ ✅ 🤖 😀",
    "long white space": "left" + " " * 3000 + "right" + "\n" * 200 + "end",
}


@pytest.fixture
def exact() -> tokens.TokenCounter:
    pytest.importorskip("quicktok", reason="needs the extra 'tokens'")
    return resolve_counter("exact")


@pytest.mark.parametrize("name", SAMPLES)
def test_estimate_is_near_the_exact_count(name: str, exact: tokens.TokenCounter) -> None:
    ratio = estimate_tokens(SAMPLES[name]) / exact(SAMPLES[name])
    assert 0.90 <= ratio <= 1.35, f"{ratio:.3f}"


@pytest.mark.parametrize("text", ["", "a", " ", "\n", "é", "中", "🙂", "\x00", "\ud800", "a b 1"])
def test_estimate_of_tiny_texts(text: str) -> None:
    assert min(len(text), 1) <= estimate_tokens(text) <= 4


def test_estimate_of_a_long_text_is_that_of_its_parts() -> None:
    part = ENGLISH * 40
    repeats = tokens._CHUNK * 3 // len(part)
    assert estimate_tokens(part * repeats) == pytest.approx(
        estimate_tokens(part) * repeats, rel=1e-3
    )


def test_estimate_does_not_shrink_as_a_text_grows() -> None:
    text = "".join(SAMPLES.values())
    counts = [estimate_tokens(text[:end]) for end in range(0, len(text), 997)]
    assert counts == sorted(counts)


def test_exact_count_takes_any_string(exact: tokens.TokenCounter) -> None:
    assert exact("") == 0
    assert exact("hello world") == 2
    assert exact("\ud800 half a pair \udc00") > 4
    assert exact("<|endoftext|>") > 1


def test_counter_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_counter("estimate") is estimate_tokens
    assert resolve_counter(len) is len
    with pytest.raises(ConfigError, match="'tiktoken'"):
        resolve_counter("tiktoken")
    monkeypatch.setattr(tokens, "find_spec", lambda name: None)
    assert resolve_counter("auto") is estimate_tokens
    with pytest.raises(MissingExtraError, match=r"zerda-pg\[tokens\]"):
        resolve_counter("exact")


def test_auto_is_exact_where_it_can_be(exact: tokens.TokenCounter) -> None:
    assert resolve_counter("auto") is exact


@pytest.mark.parametrize(
    ("content", "count"), [("", 1), ("abc", 1), ("a" * 41, 10), ({"a": 1}, 2), (None, 1)]
)
def test_seed_estimate(content: object, count: int) -> None:
    assert seed_token_estimate(content) == count
