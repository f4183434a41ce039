"""Authentication: secrets, tokens, the handshake, TLS, and what each role may call."""
