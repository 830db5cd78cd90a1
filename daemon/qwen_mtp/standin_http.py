"""The stand-in's HTTP API, in the shape of SGLang's."""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_OPEN = ("/health", "/metrics", "/ready")
"""Paths that need no key (utils/auth.py)."""
_WORDS = ("Paris", "is", "the", "capital", "of", "France", "and", "has", "been", "so", "for", "long")
_ACCEPT_LENGTH = 1.43


def log_line(text: str, stream: Any = None) -> None:
    """Print a line as SGLang's logger does."""
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text, file=stream or sys.stderr, flush=True)


class Server(ThreadingHTTPServer):
    """Answers like an SGLang in the state that its attributes say.

    Attributes:
        ready: whether the warm-up is over.
        draining: whether SIGTERM came.
        stuck: whether the scheduler answers nothing any more.
        running: generation requests at work.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, model: str, version: str, api_key: str, speed: float) -> None:
        self.model = model
        self.version = version
        self.api_key = api_key
        self.pause = 0.01 / speed if speed else 0.0
        self.ready = False
        self.draining = False
        self.stuck = False
        self.running = 0
        self.lock = threading.Lock()
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        status = int(code)
        reason = self.responses.get(status, ("",))[0]
        log_line(
            f'INFO:     {self.client_address[0]}:{self.client_address[1]} - "{self.requestline}" {status} {reason}',
            sys.stdout,
        )

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing else."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if not self._allowed(path):
            return
        if path in ("/health", "/health_generate"):
            self._health()
        elif path == "/ready":
            self._reply(200 if self.server.ready and not self.server.draining else 503)
        elif path in ("/ping", "/"):
            self._reply(200)
        elif path in ("/model_info", "/get_model_info"):
            self._reply(200, {"model_path": self.server.model, "is_generation": True, "model_type": "qwen3_5"})
        elif path == "/v1/models":
            model = {"id": self.server.model, "object": "model", "owned_by": "sglang", "max_model_len": 262144}
            self._reply(200, {"object": "list", "data": [model]})
        elif path in ("/server_info", "/get_server_info"):
            self._reply(200, {"model_path": self.server.model, "version": self.server.version})
        elif path == "/v1/loads":
            load = {"dp_rank": 0, "num_running_reqs": self.server.running, "num_waiting_reqs": 0}
            self._reply(200, {"version": self.server.version, "loads": [load]})
        elif path == "/metrics":
            text = f'sglang:num_running_reqs{{model_name="{self.server.model}"}} {self.server.running}\n'
            self._send(200, text.encode(), "text/plain; version=0.0.4")
        else:
            self._reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        path = self.path.split("?")[0]
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        except ValueError:
            self._reply(400, {"object": "error", "message": "the body is no JSON", "code": 400})
            return
        if not self._allowed(path):
            return
        if path not in ("/generate", "/v1/completions", "/v1/chat/completions"):
            self._reply(404, {"detail": "Not Found"})
            return
        parameters = body.get("sampling_params") or {}
        tokens = int(parameters.get("max_new_tokens") or body.get("max_tokens") or 16)
        with self.server.lock:
            self.server.running += 1
        try:
            text = self._generate(tokens)
            if body.get("stream"):
                self._stream(path, text)
            else:
                self._reply(200, self._answer(path, text, tokens))
        finally:
            with self.server.lock:
                self.server.running -= 1

    def _allowed(self, path: str) -> bool:
        key = self.server.api_key
        if not key or path.startswith(_OPEN) or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._reply(401, {"error": "Unauthorized"})
        return False

    def _health(self) -> None:
        while self.server.stuck:
            time.sleep(0.1)
        if self.server.draining:
            log_line("Health check request received during shutdown. Returning 503.")
        if not self.server.ready or self.server.draining:
            self._reply(503)
            return
        self._prefill(1)
        time.sleep(self.server.pause * 100)
        self._reply(200)

    def _prefill(self, tokens: int) -> None:
        log_line(
            f"Prefill batch, #new-seq: 1, #new-token: {tokens}, #cached-token: 0, full token usage: 0.00, "
            "mamba usage: 0.02, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: True, "
            "input throughput (token/s): 9.45"
        )

    def _generate(self, tokens: int) -> str:
        self._prefill(8)
        began = time.monotonic()
        for done in range(tokens):
            while self.server.stuck:
                time.sleep(0.1)
            time.sleep(self.server.pause)
            if done % 40 == 15 or done == tokens - 1:
                rate = (done + 1) / max(time.monotonic() - began, 1e-6)
                log_line(
                    f"Decode batch, #running-req: {self.server.running}, #full token: {done + 9}, full token usage: "
                    f"0.00, mamba num: 3, mamba usage: 0.02, accept len: {_ACCEPT_LENGTH}, accept rate: 0.43, "
                    f"cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0"
                )
        return " ".join(_WORDS[n % len(_WORDS)] for n in range(tokens))

    def _answer(self, path: str, text: str, tokens: int) -> dict[str, Any]:
        if path == "/generate":
            return {"text": text, "meta_info": {"completion_tokens": tokens, "finish_reason": {"type": "length"}}}
        usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": tokens + 8}
        if path == "/v1/completions":
            choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": "length"}
            return {"object": "text_completion", "model": self.server.model, "choices": [choice], "usage": usage}
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        return {"object": "chat.completion", "model": self.server.model, "choices": [choice], "usage": usage}

    def _stream(self, path: str, text: str) -> None:
        events = []
        for word in text.split():
            piece: dict[str, Any] = {"delta": {"content": word + " "}} if "chat" in path else {"text": word + " "}
            events.append(json.dumps({"choices": [{"index": 0, **piece}]}))
        data = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
        self._send(200, data.encode(), "text/event-stream")

    def _reply(self, status: int, body: object = None) -> None:
        self._send(status, b"" if body is None else json.dumps(body).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
