from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from qwen_mtp.recording import RecordingError, load
from tests.harness import PYTHON, ROOT, free_port

RECORDINGS = ROOT / "tests/recordings"
READY = "0.5.11/90-27b-mtp-success"
NEW = "0.5.23/serve-term-idle"


@contextmanager
def started(case: str, *words: str, port: int = 0, speed: str = "0") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = port or free_port()
    process = subprocess.Popen(
        [PYTHON, "-m", "qwen_mtp.standin", "--recording", str(RECORDINGS / case), "--speed", speed, *words,
         "--port", str(port), "--tp-size", "2", "--some-option-of-sglang"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "daemon")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def healthy(url: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    "case",
    ["0.5.11/10-draft-tokens-1-only", "0.5.11/51-oom-draft-kv-pool", "0.5.11/21-unknown-argument", "0.5.23/model-bad-shape",
     "0.5.11/33-truncated-sgl-kernel"],
)  # fmt: skip
def test_a_failure_is_replayed_byte_for_byte_and_ends_as_recorded(case: str) -> None:
    recording = load(RECORDINGS / case)
    with started(case) as (process, _):
        output, _ = process.communicate(timeout=30)
        assert output == recording.log
        assert process.returncode == recording.returncode


def test_the_timing_is_the_recorded_one_by_the_speed_factor() -> None:
    # 0.06 s of silence after the spawn are in no recording; this one ends after 28 s, here fourteen times as fast.
    began = time.monotonic()
    with started("0.5.11/10-draft-tokens-1-only", speed="14") as (process, _):
        process.communicate(timeout=60)
    assert time.monotonic() - began > 27.0 / 14


def test_the_api_answers_as_sglang_does() -> None:
    with started(READY, "--model-path", "/m") as (_, url):
        healthy(url)
        get = {
            path: httpx.get(url + path).status_code for path in ("/ready", "/ping", "/v1/models", "/metrics", "/nosuch")
        }
        assert get == {"/ready": 200, "/ping": 200, "/v1/models": 200, "/metrics": 200, "/nosuch": 404}
        assert httpx.get(f"{url}/model_info").json()["model_path"] == "/m"
        assert httpx.get(f"{url}/server_info").json()["version"] == "0.5.11"
        body = {"prompt": "x", "max_tokens": 5}
        assert httpx.post(f"{url}/v1/completions", json=body).json()["usage"]["completion_tokens"] == 5
        chat = httpx.post(f"{url}/v1/chat/completions", json={"messages": [], "max_tokens": 3, "stream": True})
        assert chat.text.endswith("data: [DONE]\n\n")
        generated = httpx.post(f"{url}/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 2}})
        assert generated.json()["meta_info"]["completion_tokens"] == 2
        assert httpx.post(f"{url}/v1/completions", content=b"{").status_code == 400


@pytest.mark.parametrize("text", ['{"api-key": "secret-key"}', "port: 1\napi_key: secret-key\n"])
def test_the_key_comes_from_the_config_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with started(READY, "--config", str(tmp_path / "config")) as (_, url):
        healthy(url)
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer secret-key"}).status_code == 200


@pytest.mark.parametrize(("case", "returncode"), [(READY, -signal.SIGKILL), (NEW, 0)])
def test_sigterm_ends_it_as_that_version_does(case: str, returncode: int) -> None:
    with started(case) as (process, url):
        healthy(url)
        process.terminate()
        output, _ = process.communicate(timeout=30)
        assert process.returncode == returncode
        assert b"Gracefully exiting... Remaining number of requests 0" in output


def test_sigterm_before_it_is_ready_ends_it_at_once() -> None:
    with started(READY, "--hang-at", "Load weight begin") as (process, _):
        assert process.stdout is not None
        while b"Load weight begin" not in process.stdout.readline():
            pass
        process.terminate()
        process.communicate(timeout=10)
        assert process.returncode == -signal.SIGTERM


def test_a_taken_port_is_told_as_sglang_tells_it_and_it_lingers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with started(READY, port=port) as (process, _):
            assert process.stdout is not None
            while True:
                line = process.stdout.readline()
                if b"[Errno 98]" in line:
                    break
                assert line
            assert f"('127.0.0.1', {port}): address already in use".encode() in line
            time.sleep(0.3)
            assert process.poll() is None


def test_exit_at_a_line() -> None:
    with started(READY, "--exit-at", "Load weight begin", "7") as (process, _):
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 7
        assert output.rstrip().splitlines()[-1].endswith(b"Load weight begin. avail mem=139.13 GB")


@pytest.mark.parametrize("damage", ["none", "no log", "short log", "no json"])
def test_what_is_no_recording_is_named(tmp_path: Path, damage: str) -> None:
    if damage != "none":
        for name in ("log", "arrivals.tsv", "meta.json"):
            (tmp_path / name).write_bytes((RECORDINGS / "0.5.11/35-sglang-not-installed" / name).read_bytes())
    if damage == "no log":
        (tmp_path / "log").unlink()
    elif damage == "short log":
        (tmp_path / "log").write_bytes(b"x")
    elif damage == "no json":
        (tmp_path / "meta.json").write_text("{")
    with pytest.raises(RecordingError, match=str(tmp_path)):
        load(tmp_path)


def test_every_recording_can_be_loaded() -> None:
    cases = [path.parent for path in RECORDINGS.glob("*/*/meta.json")]
    assert len(cases) > 200
    for case in cases:
        assert json.loads((case / "meta.json").read_text())["sglang"] == load(case).version
