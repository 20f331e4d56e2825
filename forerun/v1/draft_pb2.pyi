from forerun.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DetachReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DETACH_REASON_UNSPECIFIED: _ClassVar[DetachReason]
    DETACH_REASON_CONTEXT_LENGTH: _ClassVar[DetachReason]
    DETACH_REASON_CAPACITY: _ClassVar[DetachReason]
    DETACH_REASON_INVALID: _ClassVar[DetachReason]
    DETACH_REASON_FAILED: _ClassVar[DetachReason]
DETACH_REASON_UNSPECIFIED: DetachReason
DETACH_REASON_CONTEXT_LENGTH: DetachReason
DETACH_REASON_CAPACITY: DetachReason
DETACH_REASON_INVALID: DetachReason
DETACH_REASON_FAILED: DetachReason

class DraftServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftServiceGetInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _types_pb2.ServiceInfo
    def __init__(self, info: _Optional[_Union[_types_pb2.ServiceInfo, _Mapping]] = ...) -> None: ...

class DraftServiceGetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftServiceGetStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: _types_pb2.ServiceStats
    def __init__(self, stats: _Optional[_Union[_types_pb2.ServiceStats, _Mapping]] = ...) -> None: ...

class SpeculateRequest(_message.Message):
    __slots__ = ("hello", "entries")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.Hello
    entries: _containers.RepeatedCompositeFieldContainer[DraftRequestEntry]
    def __init__(self, hello: _Optional[_Union[_types_pb2.Hello, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[DraftRequestEntry, _Mapping]]] = ...) -> None: ...

class DraftRequestEntry(_message.Message):
    __slots__ = ("session_id", "attachment", "open", "advance", "rollback", "configure", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    attachment: int
    open: DraftOpen
    advance: Advance
    rollback: Rollback
    configure: ConfigureDraft
    close: _types_pb2.Close
    def __init__(self, session_id: _Optional[int] = ..., attachment: _Optional[int] = ..., open: _Optional[_Union[DraftOpen, _Mapping]] = ..., advance: _Optional[_Union[Advance, _Mapping]] = ..., rollback: _Optional[_Union[Rollback, _Mapping]] = ..., configure: _Optional[_Union[ConfigureDraft, _Mapping]] = ..., close: _Optional[_Union[_types_pb2.Close, _Mapping]] = ...) -> None: ...

class DraftOpen(_message.Message):
    __slots__ = ("prompt_token_ids", "output_token_ids", "sampling", "draft_length", "window", "refuted_epoch", "round_index", "traceparent", "time_to_live_ms")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    REFUTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_LIVE_MS_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _types_pb2.SamplingParams
    draft_length: int
    window: int
    refuted_epoch: int
    round_index: int
    traceparent: str
    time_to_live_ms: int
    def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., draft_length: _Optional[int] = ..., window: _Optional[int] = ..., refuted_epoch: _Optional[int] = ..., round_index: _Optional[int] = ..., traceparent: _Optional[str] = ..., time_to_live_ms: _Optional[int] = ...) -> None: ...

class Advance(_message.Message):
    __slots__ = ("start_position", "token_ids", "round_index")
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    start_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    round_index: int
    def __init__(self, start_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., round_index: _Optional[int] = ...) -> None: ...

class Rollback(_message.Message):
    __slots__ = ("start_position", "token_ids", "refuted_epoch", "round_index")
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REFUTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    start_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    refuted_epoch: int
    round_index: int
    def __init__(self, start_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., refuted_epoch: _Optional[int] = ..., round_index: _Optional[int] = ...) -> None: ...

class ConfigureDraft(_message.Message):
    __slots__ = ("draft_length", "window")
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    draft_length: int
    window: int
    def __init__(self, draft_length: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class SpeculateResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DraftResponseEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[DraftResponseEntry, _Mapping]]] = ...) -> None: ...

class DraftResponseEntry(_message.Message):
    __slots__ = ("session_id", "attachment", "candidates", "need_open", "unknown_session", "detached")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    NEED_OPEN_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SESSION_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    attachment: int
    candidates: Candidates
    need_open: NeedOpen
    unknown_session: _types_pb2.UnknownSession
    detached: Detached
    def __init__(self, session_id: _Optional[int] = ..., attachment: _Optional[int] = ..., candidates: _Optional[_Union[Candidates, _Mapping]] = ..., need_open: _Optional[_Union[NeedOpen, _Mapping]] = ..., unknown_session: _Optional[_Union[_types_pb2.UnknownSession, _Mapping]] = ..., detached: _Optional[_Union[Detached, _Mapping]] = ...) -> None: ...

class Candidates(_message.Message):
    __slots__ = ("epoch", "start_position", "token_ids", "exhausted", "round_index", "draft_ns", "steps")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    exhausted: bool
    round_index: int
    draft_ns: int
    steps: int
    def __init__(self, epoch: _Optional[int] = ..., start_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., exhausted: _Optional[bool] = ..., round_index: _Optional[int] = ..., draft_ns: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class NeedOpen(_message.Message):
    __slots__ = ("committed_length",)
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    def __init__(self, committed_length: _Optional[int] = ...) -> None: ...

class Detached(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: DetachReason
    detail: str
    def __init__(self, reason: _Optional[_Union[DetachReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...
