"""LangChain: a retriever of a user's memories.

    retriever = RecallRetriever(client=client, user_id="ann", k=4)
    chain = {"context": retriever, "question": RunnablePassthrough()} | prompt | model

Pass other fields of a `recall` as `fields`, or with a call: `retriever.invoke(question, after=position)`. If the user
is known only when the chain runs, make it a part of the configuration with LangChain's `configurable_fields`."""

from functools import partial
from typing import Any

from pydantic import SkipValidation

from recallflow.integrations import extra
from recallflow.responses import RecalledMemory
from recallflow.verbs.verbs import SyncCalls

with extra("langchain"):
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import run_in_executor


class RecallRetriever(BaseRetriever):
    """Retriever of the `k` best memories for a question (default: the engine's number). A document has the text and id
    of a memory, and the engine's other data as metadata. `fields` are other fields of a `recall`."""

    client: SkipValidation[SyncCalls]
    user_id: str
    k: int | None = None
    fields: dict[str, Any] = {}

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **fields: Any
    ) -> list[Document]:
        del run_manager  # LangChain itself reports the events of a retriever
        limit = {} if self.k is None else {"k": self.k}
        found = self.client.search(query, user=self.user_id, **(limit | self.fields | fields))
        return [_document(memory) for memory in found]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **fields: Any
    ) -> list[Document]:
        call = partial(self._get_relevant_documents, query, run_manager=run_manager.get_sync(), **fields)
        return await run_in_executor(None, call)


def _document(memory: RecalledMemory) -> Document:
    metadata = memory.model_dump(mode="json", exclude={"id", "content", "why", "explanation"}, exclude_none=True)
    return Document(id=memory.id, page_content=memory.content, metadata=metadata)
