"""qwen-mtp: a systemd-native supervisor for SGLang with multi-token prediction."""

__version__ = "0.1.0"
