"""One name, one thing, in the whole house: no two classes share a name, and ops are listed where they are declared."""

from __future__ import annotations



