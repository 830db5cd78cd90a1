"""Questions to SGLang over HTTP, asked on one worker thread so that the main loop never waits."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from qwen_mtp import loop
from qwen_mtp.command import Endpoint

if TYPE_CHECKING:
    import httpx

_GENERATE = {"text": "1", "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}}
"""One greedy token by SGLang's own /generate; the same in 0.5.9 to 0.5.23."""


class Answer(NamedTuple):
    """What came of a question.

    Attributes:
        ok: whether SGLang answered 200.
        detail: status line or error, for people.
        seconds: how long it took.
    """

    ok: bool
    detail: str
    seconds: float


class Prober:
    """Asks SGLang for its health, one question at a time.

    Args:
        endpoint: where SGLang serves.
        api_key: for endpoints that want one; empty for none.
        timeout: seconds that one answer may take. SGLang itself gives up after 20 s
            (SGLANG_HEALTH_CHECK_TIMEOUT) and answers 503.
    """

    def __init__(self, endpoint: Endpoint, api_key: str, timeout: float) -> None:
        self._endpoint = endpoint
        self._api_key = api_key
        self._timeout = timeout
        self._questions: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._client: httpx.Client | None = None

    def health(self, then: Callable[[Answer], None]) -> None:
        """Ask /health, for which an idle SGLang generates one token (entrypoints/http_server.py)."""
        self._ask(lambda: self._request("GET", "/health"), then)

    def generate(self, then: Callable[[Answer], None]) -> None:
        """Ask for one token by /generate."""
        self._ask(lambda: self._request("POST", "/generate", _GENERATE), then)

    def close(self) -> None:
        """End the thread after the question it is at; its answer is not delivered by then or ever."""
        self._questions.put(None)

    def _ask(self, question: Callable[[], Answer], then: Callable[[Answer], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="health", daemon=True)
            self._thread.start()

        def work() -> None:
            answer = question()
            loop.post(lambda: then(answer))

        self._questions.put(work)

    def _run(self) -> None:
        while (work := self._questions.get()) is not None:
            work()
        if self._client is not None:
            self._client.close()

    def _request(self, method: str, path: str, body: object = None) -> Answer:
        import httpx  # 150 ms and 10 MB: only when SGLang is about to answer

        if self._client is None:
            # Our own server, on this machine: its certificate is made for its public name.
            self._client = httpx.Client(
                base_url=self._endpoint.url,
                timeout=self._timeout,
                verify=False,  # noqa: S501
                trust_env=False,
                headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {},
            )
        began = time.monotonic()
        try:
            response = self._client.request(method, path, json=body)
        except (httpx.HTTPError, OSError) as error:
            detail = f"{type(error).__name__}: {error}".rstrip(": ")
            return Answer(False, detail, time.monotonic() - began)
        detail = f"{response.status_code} {response.reason_phrase}"
        return Answer(response.status_code == 200, detail, time.monotonic() - began)
