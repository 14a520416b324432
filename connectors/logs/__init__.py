"""Conversation logs of other programs, as memory events."""
