"""Adapter + base -> a PEFT directory and merged safetensors, proven to load elsewhere."""
