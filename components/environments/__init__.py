"""Messages in, messages out."""
