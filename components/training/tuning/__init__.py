"""Examples of what to say, or of what to prefer -> a better adapter, or a base that is warm: supervised tuning."""
