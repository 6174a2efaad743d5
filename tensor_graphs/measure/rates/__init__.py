"""rates: measures how fast a device is: bytes and operations a second, launches, links."""
