"""Call an async function once per item without blocking the worker.

    completions = Completions()
    runtime = Runtime(completions, capacity=100, timeout_s=30.0)

    read = async_input("read", flow, source, completions)
    asked = batched("batches", op.key_on("key", read.items, lambda question: question.user), size=8, wait_s=2.0)
    answered = async_call("ask", asked, read.finished, ask_model, runtime)  # Completed or Failed

How it works:

1. The operator's logic submits a call for an item to the runtime, and keeps the item until its result is there. The
   items kept are its snapshot, and are called again on resume: a call happens at least once, its result comes out once.
2. The runtime's calls run on the one asyncio loop thread of the process, at most `capacity` at a time, first come
   first served over all keys, steps and workers. A call is made once: who tries again is the client that it is made of.
3. A finished call makes a `Completion`, and sets an event on which the source waits for its own input anyway. The
   source emits the completion, it is routed by key to the logic it belongs to, and that logic emits the result. Nobody
   polls. A completion only names its call: the result is handed over within the process.
4. Where the input ends, what is pending stays in the snapshot.

What needs Bytewax is imported from its module: calls are made where there is no dataflow as well. `steps.py` has the
operators, `batching.py` batches, `logic.py` the state per key, `source.py` the source that emits completions.

No back-pressure crosses from a stateful step to a source: a source that should stop reading ahead counts what it gave
and what came out.
"""

from recallflow.operators.async_call.completions import Completion, Completions
from recallflow.operators.async_call.results import CallError, Completed, Failed, Result
from recallflow.operators.async_call.runtime import Call, Runtime

__all__ = ["Call", "CallError", "Completed", "Completion", "Completions", "Failed", "Result", "Runtime"]
