"""The settings that shape stored data, and their comparison with those of an existing directory."""

from dataclasses import asdict, dataclass
from pathlib import Path

from recallflow.errors import SettingsMismatch
from recallflow.language import ANALYSIS


@dataclass(frozen=True)
class Fingerprint:
    """The settings that shape stored data. State written with other settings cannot be used."""

    partitions: int
    embedder: str
    dimension: int
    episode_gap_ms: int
    similarity_threshold: float
    similarity_max_k: int
    similarity_max_per_memory: int
    analysis: str = ANALYSIS


def check_same(path: Path, one: Fingerprint, other_path: Path, other: Fingerprint) -> None:
    """Raise SettingsMismatch if two directories have different settings."""
    if one != other:
        others = asdict(other)
        settings = [
            f"{name} is {value!r} and {others[name]!r}" for name, value in asdict(one).items() if value != others[name]
        ]
        raise SettingsMismatch(f"{path} and {other_path} were created with different settings: {'; '.join(settings)}")


def check_settings(path: Path, stored: Fingerprint, given: Fingerprint) -> None:
    """Raise SettingsMismatch if a directory has other settings than the given ones."""
    ours = asdict(given)
    differing = [
        f"{name} is {was!r} there and {ours[name]!r} here" for name, was in asdict(stored).items() if was != ours[name]
    ]
    if stored.analysis != given.analysis:
        raise SettingsMismatch(
            f"{path} was built with the text analysis {stored.analysis!r}, this recallflow has {given.analysis!r}: "
            "use the version that built it, or start with a new directory, which reads the log anew"
        )
    if differing:
        other_model = (stored.embedder, stored.dimension) != (given.embedder, given.dimension)
        how = ", for which recallflow reembed computes the vectors of an embedding service" if other_model else ""
        raise SettingsMismatch(
            f"{path} was created with other settings: {'; '.join(differing)}. "
            f"Use the settings it was created with, or replay the log into a new directory{how}"
        )
