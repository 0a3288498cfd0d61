"""(base, adapter, tokens) -> logits."""
