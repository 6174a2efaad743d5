"""rates: how fast the device itself is: bytes and operations a second, launches, links."""
