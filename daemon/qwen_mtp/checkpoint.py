"""A local model's files, looked at before minutes are spent on them.

SGLang finds a damaged shard only when it gets there, up to 0.5.16 does not notice one that is missing, and no
version notices missing tensors: it becomes ready with uninitialised weights (0.5.11/42-shard-missing,
46-no-mtp-weights, 0.5.23/model-bad-missingkey). Only names, sizes and headers are read, not the weights.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qwen_mtp.diagnosis import Diagnosis, Evidence
from qwen_mtp.states import FailureClass, Restart

_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000
"""Bytes of a header that the safetensors library accepts."""
_LFS = b"version https://git-lfs"
_MTP_INSIDE = ("qwen3_5", "qwen3_next")
"""Beginnings of model types whose MTP weights lie in the checkpoint as `mtp.*` (models/qwen3_5_mtp.py)."""
_DOWNLOAD = "Download the model again, completely."


def _finding(failure_class: FailureClass, rule: str, summary: str, cause: str, remedy: str) -> Diagnosis:
    evidence = Evidence(0, "", "preflight")
    return Diagnosis(failure_class, rule, summary, cause, remedy, Restart.NEVER, 1.0, evidence)


def _unreadable(path: Path, error: OSError) -> Diagnosis:
    if isinstance(error, PermissionError):
        return _finding(
            FailureClass.PERMISSION_DENIED,
            "model-file-unreadable",
            f"{path} cannot be read by the service's user",
            "The user qwen-mtp may not read the file; SGLang would report it as missing.",
            f"chmod o+r {path}",
        )
    return _finding(
        FailureClass.MODEL_NOT_FOUND,
        "model-file-missing",
        f"{path}: {error.strerror}",
        "A file of the model is missing or its file system refuses it.",
        _DOWNLOAD,
    )


def _corrupt(rule: str, summary: str, cause: str) -> Diagnosis:
    return _finding(FailureClass.MODEL_CORRUPT, rule, summary, cause, _DOWNLOAD)


def check(directory: Path, args: Mapping[str, Any]) -> Diagnosis | None:
    """Look at a model directory.

    Args:
        directory: the model, which exists.
        args: SGLang's options, by long name.

    Returns:
        The first thing that would make SGLang fail or serve nonsense, or None.
    """
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _finding(
            FailureClass.MODEL_NOT_FOUND,
            "config-json-absent",
            f"{directory} holds no config.json",
            "The directory is not a model, or the download is incomplete.",
            "Correct model-path under [args], or download the model again.",
        )
    except OSError as error:
        return _unreadable(directory / "config.json", error)
    except ValueError as error:
        return _corrupt("config-json-damaged", f"{directory}/config.json is no valid JSON: {error}", "It is damaged.")
    if not isinstance(config, dict):
        return _corrupt("config-json-damaged", f"{directory}/config.json is no JSON object", "It is damaged.")
    found = _heads(config, args)
    if found is not None or args.get("load-format", "auto") not in ("auto", "safetensors"):
        return found
    return _weights(directory, config, args)


def _heads(config: Mapping[str, Any], args: Mapping[str, Any]) -> Diagnosis | None:
    text = config.get("text_config")
    shape = text if isinstance(text, dict) else config
    heads, size = shape.get("num_attention_heads"), args.get("tp-size", 1)
    if not isinstance(heads, int) or not isinstance(size, int) or size < 1 or args.get("enable-dp-attention"):
        return None
    if heads % size == 0:
        return None
    good = [str(number) for number in range(1, heads + 1) if heads % number == 0 and number <= 16]
    return _finding(
        FailureClass.CONFIG_ASSERTION,
        "tp-size-heads",
        f"tp-size {size} does not divide the model's {heads} attention heads",
        "Each GPU takes a whole number of heads; SGLang would find out only while it loads.",
        f"tp-size under [args] can be {', '.join(good)}",
    )


def _weights(directory: Path, config: Mapping[str, Any], args: Mapping[str, Any]) -> Diagnosis | None:
    index = directory / _INDEX
    try:
        if index.exists():
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names, shards = set(weight_map), sorted(set(weight_map.values()))
        else:
            names, shards = set(), sorted(file.name for file in directory.glob("*.safetensors"))
    except OSError as error:
        return _unreadable(index, error)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _corrupt("index-damaged", f"{index} is no index of shards", "The file is damaged.")
    missing = [shard for shard in shards if not (directory / shard).exists()]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return _corrupt(
            "shards-absent",
            f"{len(missing)} of {len(shards)} shards are missing from {directory}: {shown}",
            "The download is incomplete. SGLang up to 0.5.16 would serve with uninitialised weights instead.",
        )
    for shard in shards:
        try:
            header = _header(directory / shard)
        except OSError as error:
            return _unreadable(directory / shard, error)
        except ValueError as error:
            return _corrupt("shard-unsound", f"{directory}/{shard} {error}", "The file is damaged or incomplete.")
        names.update(header)
    return _mtp(directory, config, args, names) if names else None


def _header(path: Path) -> Iterator[str]:
    """Read the names of a shard's tensors, and check that the file is as long as they say.

    Raises:
        ValueError: it is no sound safetensors file; the text continues a sentence about it.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        if start and _LFS.startswith(start[: len(_LFS)]):
            raise ValueError("is a git-lfs pointer, not the weights: run git lfs pull")
        if len(start) < 8:
            raise ValueError("is empty" if not start else "is cut short")
        (length,) = struct.unpack("<Q", start)
        if length > min(_MAX_HEADER, size - 8):
            raise ValueError("has no sound header")
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise ValueError("has no sound header") from None
    wanted = 8 + length + max(ends, default=0)
    if size != wanted:
        raise ValueError(f"has {size} bytes where its header says {wanted}")
    return (name for name in header if name != "__metadata__")


def _mtp(directory: Path, config: Mapping[str, Any], args: Mapping[str, Any], names: set[str]) -> Diagnosis | None:
    wanted = args.get("speculative-algorithm") == "NEXTN" and not args.get("speculative-draft-model-path")
    if not wanted or not str(config.get("model_type", "")).startswith(_MTP_INSIDE):
        return None
    if any(name.startswith("mtp.") for name in names):
        return None
    return _finding(
        FailureClass.MODEL_CORRUPT,
        "mtp-weights-absent",
        f"{directory} holds no MTP weights (mtp.*), and speculative-algorithm is NEXTN",
        "The checkpoint was converted without them. SGLang would draft with uninitialised weights.",
        "Use the original checkpoint, or remove the speculative options from [args].",
    )
