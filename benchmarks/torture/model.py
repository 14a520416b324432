"""What an owner's memory must hold, by the contract alone: the few rules of docs/events.md that the checker needs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Memory:
    """One memory: its versions' contents, oldest first."""

    versions: list[str]


@dataclass
class Mind:
    """An owner's memories by id. Forgotten ones stay known as such."""

    memories: dict[str, Memory] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)

    def apply(self, event: dict[str, Any]) -> bool:
        """Takes an event in. Whether it can take effect; if not, it has to become a dead letter."""
        match event["type"]:
            case "message" | "memory":
                self.memories.setdefault(event["id"], Memory([event["content"]]))
                return True
            case "memory.update":
                if (memory := self.memories.get(event["memory_id"])) is None:
                    return False
                if memory.versions[-1] != event["content"]:
                    memory.versions.append(event["content"])
                return True
            case "memory.forget":
                if self.memories.pop(event["memory_id"], None) is None:
                    return False
                self.forgotten.add(event["memory_id"])
                return True
        return True


@dataclass
class Minds:
    """All owners' memories."""

    owners: dict[str, Mind] = field(default_factory=dict)

    def of(self, owner: str) -> Mind:
        return self.owners.setdefault(owner, Mind())

    def __iter__(self) -> Iterator[tuple[str, Mind]]:
        return iter(self.owners.items())


def same_text(told: str, answered: dict[str, Any]) -> bool:
    """Whether an answer's item holds a told text: whole, or the beginning of it and says so."""
    content = str(answered["content"])
    if answered.get("truncated"):
        return told.startswith(content.rstrip("…").rstrip()) and len(content) < len(told) + 1
    return content == told
