"""Public names of `recallflow`: events, responses and errors.

`X as X` marks a name as public for type checkers."""

# ruff: noqa: I001 - which would make a statement of each name

from recallflow.control import (
    ApiKey as ApiKey, Category as Category, ControlEvent as ControlEvent, GateVerdict as GateVerdict,
    OwnerMapping as OwnerMapping, Quota as Quota, Rollout as Rollout, TenantSettings as TenantSettings,
)  # fmt: skip
from recallflow.errors import (
    DecryptionFailed as DecryptionFailed, DeliveryFailed as DeliveryFailed,
    EmbedderError as EmbedderError, FieldProblem as FieldProblem, InvalidRecord as InvalidRecord,
    ModelError as ModelError, QueryTimeout as QueryTimeout,
    RecallflowError as RecallflowError, SettingsMismatch as SettingsMismatch, SourceError as SourceError,
    PartitionMissing as PartitionMissing, StateError as StateError, StateFormatError as StateFormatError,
    StateInUse as StateInUse, StorageError as StorageError, UsageError as UsageError,
)  # fmt: skip
from recallflow.events import (
    CategorySummary as CategorySummary, ContentPart as ContentPart, DerivedFrom as DerivedFrom, Entity as Entity,
    EpisodeEnd as EpisodeEnd, EpisodeSummary as EpisodeSummary, Event as Event, ForgetFilter as ForgetFilter,
    GraphArchive as GraphArchive, GraphEdge as GraphEdge, GraphEdges as GraphEdges, MemoryAdd as MemoryAdd,
    MemoryEmbedding as MemoryEmbedding, MemoryEvent as MemoryEvent, MemoryFeedback as MemoryFeedback,
    MemoryForget as MemoryForget, MemoryUpdate as MemoryUpdate, Message as Message, Relation as Relation,
    Source as Source, UserErase as UserErase,
)  # fmt: skip
from recallflow.owner import Owner as Owner, workspace_of as workspace_of
from recallflow.queries import (
    AsOf as AsOf, Decay as Decay, EpisodesList as EpisodesList, Filters as Filters, GraphExplore as GraphExplore,
    GraphFacts as GraphFacts, GraphStatus as GraphStatus, GraphTrace as GraphTrace, MemoriesList as MemoriesList,
    MemoryGet as MemoryGet, MemoryHistory as MemoryHistory, Mode as Mode, QueryEvent as QueryEvent, Recall as Recall,
    ReplyTo as ReplyTo, UserStats as UserStats,
)  # fmt: skip
from recallflow.records import Position as Position, Record as Record
from recallflow.responses import (
    CatchingUp as CatchingUp, Context as Context, ContextItem as ContextItem, EpisodeInfo as EpisodeInfo,
    ErrorBody as ErrorBody, Explanation as Explanation, FieldError as FieldError, ListedMemory as ListedMemory,
    MemoryPage as MemoryPage, MemoryVersion as MemoryVersion, QueryFailed as QueryFailed,
    RecalledEpisode as RecalledEpisode, RecalledMemory as RecalledMemory, Receipt as Receipt, Response as Response,
    Warn as Warn,
)  # fmt: skip
from recallflow.verbs.results import (
    Added as Added, Episodes as Episodes, FoundFacts as FoundFacts, History as History, Page as Page,
    ResultList as ResultList, SearchResults as SearchResults, Stats as Stats,
)  # fmt: skip
