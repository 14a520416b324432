"""Records as nobody should send them, and what must not come of any."""
