"""The faults: each hurts the engine, its broker or its topics as something in production does, and leaves it running or
ended; the trial then sees that it comes back."""

import resource
import shutil
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, Producer

from benchmarks.torture.engine import Engine
from benchmarks.torture.log import LETTER, NOTHING
from benchmarks.torture.reader import FOREIGN
from benchmarks.torture.topics import OUTPUTS
from benchmarks.torture.trial import Trial

Fault = Callable[[Trial], None]


def kill(trial: Trial) -> None:
    trial.kill()
    trial.again()


def kill_starting(trial: Trial) -> None:
    """Several times, before it is ready."""
    trial.kill()
    for _ in range(trial.draw.randint(2, 4)):
        trial.start()
        trial.rest(trial.draw.uniform(0.2, 3.0))
        trial.kill()
    trial.again()


def stop(trial: Trial) -> None:
    trial.stop()
    trial.again()


def pause(trial: Trial) -> None:
    trial.engine.pause()
    trial.rest(trial.draw.uniform(0.5, trial.session_s / 2))
    trial.engine.go_on()


def pause_beyond(trial: Trial) -> None:
    """Longer than the session: its partitions may be somebody else's by then, and it joins anew."""
    trial.engine.pause()
    trial.rest(trial.session_s + trial.draw.uniform(1.0, 6.0))
    trial.engine.go_on()
    trial.rest(2.0)


def second_engine(trial: Trial) -> None:
    """On the same directory: it is refused."""
    other = Engine(trial.topics, trial.folder, *trial.options())
    other.log = trial.folder / "second.log"
    ended = other.ends()
    if ended.code not in (1, 2) or not ended.plain:
        trial.report.exits.unexpected.append(f"second engine: {ended}")
    trial.report.refused += 1


def second_member(trial: Trial) -> None:
    """On a directory of its own: it has a share for a while, and gives it back, killed or stopped."""
    with Engine(trial.topics, trial.folder, *trial.options(), *trial.orders, name="elsewhere") as other:
        other.up()
        trial.rest(trial.draw.uniform(1.0, 5.0))
        trial.draw.choice((other.kill, other.stop))()
    shutil.rmtree(other.state_dir)


def broker_killed(trial: Trial) -> None:
    trial.broker.stop(hard=True)
    trial.rest(trial.draw.uniform(0.5, 8.0))
    trial.broker.start()


def broker_stopped(trial: Trial) -> None:
    trial.broker.stop()
    trial.rest(trial.draw.uniform(0.5, 8.0))
    trial.broker.start()


def skip(trial: Trial) -> None:
    """A record that it never read is passed over by order."""
    trial.stop()
    event = {"type": "memory", "tenant_id": "acme", "user_id": "skipped", "id": f"s{trial.log.number()}"}
    sent = trial.log.event("memory", event | {"content": "to be passed over", "receipt": True}, [LETTER])
    trial.log.flush()
    trial.orders += ["--skip", sent.position]
    trial.again()


def restore(trial: Trial) -> None:
    """A checkpoint, some work, and back to it."""
    target = trial.folder / f"checkpoint-{time.monotonic_ns()}"
    trial.stop()
    _done(trial, "checkpoint", target)
    trial.again()
    trial.rest(trial.draw.uniform(1.0, 4.0))
    trial.draw.choice((trial.kill, trial.stop))()
    shutil.rmtree(trial.engine.state_dir)
    _done(trial, "restore", target)
    shutil.rmtree(target)
    trial.again()


def lose_folder(trial: Trial) -> None:
    """A partition's folder is lost: the log is read again."""
    trial.stop()
    folders = sorted(trial.engine.state_dir.glob("p[0-9]*"))
    shutil.rmtree(trial.draw.choice(folders))
    trial.again()


def disk_full(trial: Trial) -> None:
    """No file may grow beyond a small size, in the middle of the work."""
    process = trial.engine.pid()
    whole = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (trial.draw.choice((1, 8_192, 65_536)), whole[1]))
    trial.rest(trial.draw.uniform(1.0, 5.0))
    if trial.engine.running():
        trial.stop()
    else:
        trial.note(trial.engine.ended())
    trial.again()


def foreign_transaction(trial: Trial) -> None:
    """Somebody else's transaction stays open on the output topics over a kill."""
    own = {"bootstrap.servers": trial.broker.bootstrap_servers, "transactional.id": f"foreign-{time.monotonic_ns()}"}
    producer = Producer(own | {"transaction.timeout.ms": 60_000, "log_level": 0})
    try:
        producer.init_transactions(30)
        producer.begin_transaction()
        for kind in OUTPUTS:
            for number in trial.topics.bounds(kind):
                producer.produce(trial.topics.of(kind), b"{}", FOREIGN, number)
        producer.flush(30)
        trial.rest(trial.draw.uniform(1.0, 3.0))
        trial.kill()
        trial.again()
        trial.draw.choice((producer.commit_transaction, producer.abort_transaction))(30)
    except KafkaException as error:
        trial.report.broken.append(f"foreign transaction: {error}")


def give_up(trial: Trial) -> None:
    """Retention takes queries while it is down."""
    trial.stop()
    with trial.log.lock:
        trial.log.flush()
        for sent in trial.log.of(["query"]):
            sent.wants = [*sent.wants, NOTHING] if not sent.done else sent.wants
        trial.topics.forget_records("query")
    if (order := "--give-up-unanswered") not in trial.orders:
        trial.orders.append(order)
    trial.again()


def oversized(trial: Trial) -> None:
    """Memories near the bound of a record, and questions whose answers are beyond it."""
    user = f"big{trial.draw.randrange(3)}"
    told = trial.log.tell(user, content="walnut " * 142_800)
    for number in range(12):
        trial.log.tell(user, "memory.update", memory_id=told.query_id, content=f"{number} " + "harbour " * 9_000)
    trial.log.flush()
    for kind in ("memory.get", "memory.history"):
        trial.log.ask(user, kind, memory_id=told.query_id)
    trial.log.ask(user, "recall", query="walnut", k=50, max_tokens=1_000_000, wait_for=told.position)
    headers = [(f"h{number}", b"x" * 9_000) for number in range(100)]
    trial.log.raw("memory", b"{", headers=headers)


def _done(trial: Trial, action: str, *more: Any) -> None:
    done = trial.engine.state(action, *more)
    if done.code:
        trial.report.broken.append(f"{action}: {done}")


FAULTS: dict[str, Fault] = {
    "kill": kill,
    "kill starting": kill_starting,
    "stop": stop,
    "pause": pause,
    "pause beyond the session": pause_beyond,
    "second engine": second_engine,
    "second member": second_member,
    "broker killed": broker_killed,
    "broker stopped": broker_stopped,
    "skip": skip,
    "restore": restore,
    "folder lost": lose_folder,
    "disk full": disk_full,
    "foreign transaction": foreign_transaction,
    "give up": give_up,
    "oversized": oversized,
}
