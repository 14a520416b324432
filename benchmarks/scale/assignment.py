"""Who owns which partition, as Kafka's cooperative-sticky assignor decides: evenly, and moving as few as that takes."""

from collections import Counter
from collections.abc import Mapping, Sequence

Assignment = dict[int, int]  # partition → member


def assign(
    partitions: int, members: Sequence[int], before: Mapping[int, int], preferred: Mapping[int, int] | None = None
) -> Assignment:
    """An owner for each partition; nobody has two more than another. A partition that has to go to another member goes
    to the `preferred` one (who stands by for it) if that has room."""
    least, more = divmod(partitions, len(members))
    held: dict[int, list[int]] = {member: [] for member in members}
    for partition in range(partitions):
        if (owner := before.get(partition)) in held:
            held[owner].append(partition)
    stands_by = Counter(
        (preferred or {}).get(partition) for partition in range(partitions) if before.get(partition) not in held
    )
    # The odd ones stay with those who have most: from anybody else they would have to be taken. Then who stands by.
    by_claim = sorted(members, key=lambda member: (-len(held[member]), -stands_by[member], member))
    most = {member: least + (place < more) for place, member in enumerate(by_claim)}
    for member, owned in held.items():
        del owned[most[member] :]
    owners = {partition: member for member, owned in held.items() for partition in owned}
    for partition in range(partitions):
        if partition not in owners:
            wanted = (preferred or {}).get(partition)
            if wanted is None or wanted not in held or len(held[wanted]) >= most[wanted]:
                wanted = min(held, key=lambda member: (len(held[member]) - most[member], member))
            owners[partition] = wanted
            held[wanted].append(partition)
    return owners


def standbys(owners: Mapping[int, int], machine_of: Mapping[int, int]) -> Assignment:
    """Who stands by for each partition: a member of another machine than its owner's, as evenly as that goes, and those
    of one machine's partitions on as many members as there are."""
    counts = dict.fromkeys(machine_of, 0)
    together: Counter[tuple[int, int]] = Counter()  # machine, and a member that stands by for some of its partitions
    chosen: Assignment = {}
    for partition, owner in sorted(owners.items()):
        machine = machine_of[owner]
        others = [member for member in counts if machine_of[member] != machine]
        standby = min(others, key=lambda member: (counts[member], together[machine, member], member))
        chosen[partition] = standby
        counts[standby] += 1
        together[machine, standby] += 1
    return chosen


def moved(before: Mapping[int, int], after: Mapping[int, int]) -> list[int]:
    """Partitions whose owner is another one."""
    return [partition for partition, member in after.items() if before.get(partition) != member]
