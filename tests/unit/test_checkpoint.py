from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path

import pytest

from qwen_mtp import checkpoint
from qwen_mtp.checkpoint import check
from qwen_mtp.states import FailureClass

NEXTN = {"speculative-algorithm": "NEXTN"}


def shard(path: Path, *names: str) -> None:
    header = {name: {"dtype": "BF16", "shape": [2], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4 * len(names))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A sound model of two shards, the second with the MTP weights."""
    config = {"model_type": "qwen3_5", "text_config": {"num_attention_heads": 24}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shard(tmp_path / "a.safetensors", "model.x")
    shard(tmp_path / "b.safetensors", "mtp.fc.weight")
    index = {"weight_map": {"model.x": "a.safetensors", "mtp.fc.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def found(model: Path, **args: object) -> tuple[FailureClass, str, str] | None:
    diagnosis = check(model, {name.replace("_", "-"): value for name, value in args.items()})
    return (diagnosis.failure_class, diagnosis.rule, diagnosis.summary) if diagnosis else None


def test_a_sound_model_passes(model: Path) -> None:
    assert check(model, {**NEXTN, "tp-size": 2}) is None
    (model / "model.safetensors.index.json").unlink()
    assert check(model, NEXTN) is None


DAMAGES = [
    ("config.json", None, FailureClass.MODEL_NOT_FOUND, "holds no config.json"),
    ("config.json", b"{", FailureClass.MODEL_CORRUPT, "is no valid JSON"),
    ("config.json", b"[]", FailureClass.MODEL_CORRUPT, "is no JSON object"),
    ("model.safetensors.index.json", b"{}", FailureClass.MODEL_CORRUPT, "is no index of shards"),
    ("b.safetensors", None, FailureClass.MODEL_CORRUPT, "1 of 2 shards are missing"),
    ("b.safetensors", b"", FailureClass.MODEL_CORRUPT, "b.safetensors is empty"),
    ("b.safetensors", b"abc", FailureClass.MODEL_CORRUPT, "b.safetensors is cut short"),
    ("b.safetensors", os.urandom(7) + b"\xff" * 90, FailureClass.MODEL_CORRUPT, "has no sound header"),
    ("b.safetensors", struct.pack("<Q", 4) + b"nope", FailureClass.MODEL_CORRUPT, "has no sound header"),
    (
        "b.safetensors",
        b"version https://git-lfs.github.com/spec/v1\noid x\n",
        FailureClass.MODEL_CORRUPT,
        "git-lfs pointer",
    ),
]


@pytest.mark.parametrize(("name", "content", "failure_class", "words"), DAMAGES)
def test_damage_is_named(
    model: Path, name: str, content: bytes | None, failure_class: FailureClass, words: str
) -> None:
    if content is None:
        (model / name).unlink()
    else:
        (model / name).write_bytes(content)
    diagnosis = check(model, NEXTN)
    assert diagnosis is not None
    assert diagnosis.failure_class is failure_class
    assert words in diagnosis.summary


def test_a_shard_cut_short_is_told_by_its_length(model: Path) -> None:
    data = (model / "a.safetensors").read_bytes()
    (model / "a.safetensors").write_bytes(data[:-1])
    diagnosis = check(model, {})
    assert diagnosis is not None
    assert f"has {len(data) - 1} bytes where its header says {len(data)}" in diagnosis.summary


def test_nextn_needs_mtp_weights(model: Path) -> None:
    shard(model / "b.safetensors", "model.y")
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.x": "a.safetensors", "model.y": "b.safetensors"}})
    )
    assert found(model) is None
    assert found(model, speculative_algorithm="NEXTN", speculative_draft_model_path="/other") is None
    wrong = found(model, speculative_algorithm="NEXTN")
    assert wrong is not None
    assert wrong[1] == "mtp-weights-absent"


@pytest.mark.parametrize(("size", "good"), [(1, True), (2, True), (8, True), (5, False), (16, False)])
def test_tp_size_must_divide_the_heads(model: Path, size: int, good: bool) -> None:
    assert (found(model, tp_size=size) is None) is good


def test_other_load_formats_are_not_ours_to_judge(model: Path) -> None:
    (model / "a.safetensors").unlink()
    assert found(model, load_format="dummy") is None


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "a.safetensors"])
def test_a_file_that_cannot_be_opened(model: Path, name: str) -> None:
    (model / name).unlink()
    (model / name).mkdir()
    wrong = found(model)
    assert wrong is not None
    assert wrong[1:] == ("model-file-missing", f"{model / name}: Is a directory")


def test_a_file_that_may_not_be_read_is_a_matter_of_permissions(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(checkpoint, "_header", refuse)  # root, who runs the tests, may read everything
    wrong = found(model)
    assert wrong is not None
    assert wrong[0] is FailureClass.PERMISSION_DENIED
    assert wrong[2] == f"{model}/a.safetensors cannot be read by the service's user"
