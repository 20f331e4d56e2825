from forerun.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TargetServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TargetServiceGetInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _types_pb2.ServiceInfo
    def __init__(self, info: _Optional[_Union[_types_pb2.ServiceInfo, _Mapping]] = ...) -> None: ...

class TargetServiceGetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TargetServiceGetStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: _types_pb2.ServiceStats
    def __init__(self, stats: _Optional[_Union[_types_pb2.ServiceStats, _Mapping]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("hello", "entries")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.Hello
    entries: _containers.RepeatedCompositeFieldContainer[TargetRequestEntry]
    def __init__(self, hello: _Optional[_Union[_types_pb2.Hello, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[TargetRequestEntry, _Mapping]]] = ...) -> None: ...

class TargetRequestEntry(_message.Message):
    __slots__ = ("session_id", "attachment", "open", "candidates", "configure", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    attachment: int
    open: TargetOpen
    candidates: OfferCandidates
    configure: ConfigureTarget
    close: _types_pb2.Close
    def __init__(self, session_id: _Optional[int] = ..., attachment: _Optional[int] = ..., open: _Optional[_Union[TargetOpen, _Mapping]] = ..., candidates: _Optional[_Union[OfferCandidates, _Mapping]] = ..., configure: _Optional[_Union[ConfigureTarget, _Mapping]] = ..., close: _Optional[_Union[_types_pb2.Close, _Mapping]] = ...) -> None: ...

class TargetOpen(_message.Message):
    __slots__ = ("prompt_token_ids", "output_token_ids", "sampling", "commit_limit", "draft_length", "round_index", "traceparent", "time_to_live_ms")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_LIVE_MS_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _types_pb2.SamplingParams
    commit_limit: int
    draft_length: int
    round_index: int
    traceparent: str
    time_to_live_ms: int
    def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., commit_limit: _Optional[int] = ..., draft_length: _Optional[int] = ..., round_index: _Optional[int] = ..., traceparent: _Optional[str] = ..., time_to_live_ms: _Optional[int] = ...) -> None: ...

class OfferCandidates(_message.Message):
    __slots__ = ("epoch", "start_position", "token_ids", "exhausted")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    exhausted: bool
    def __init__(self, epoch: _Optional[int] = ..., start_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., exhausted: _Optional[bool] = ...) -> None: ...

class ConfigureTarget(_message.Message):
    __slots__ = ("commit_limit", "draft_length")
    COMMIT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    commit_limit: int
    draft_length: int
    def __init__(self, commit_limit: _Optional[int] = ..., draft_length: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[TargetResponseEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[TargetResponseEntry, _Mapping]]] = ...) -> None: ...

class TargetResponseEntry(_message.Message):
    __slots__ = ("session_id", "attachment", "verdict", "unknown_session", "failed")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SESSION_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    attachment: int
    verdict: Verdict
    unknown_session: _types_pb2.UnknownSession
    failed: SessionFailed
    def __init__(self, session_id: _Optional[int] = ..., attachment: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., unknown_session: _Optional[_Union[_types_pb2.UnknownSession, _Mapping]] = ..., failed: _Optional[_Union[SessionFailed, _Mapping]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("round_index", "start_position", "token_ids", "drafted_count", "accepted_count", "epoch", "finish_reason", "logprobs", "step_ns", "wait_ns", "batch_size")
    ROUND_INDEX_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    round_index: int
    start_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    drafted_count: int
    accepted_count: int
    epoch: int
    finish_reason: _types_pb2.FinishReason
    logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    step_ns: int
    wait_ns: int
    batch_size: int
    def __init__(self, round_index: _Optional[int] = ..., start_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., drafted_count: _Optional[int] = ..., accepted_count: _Optional[int] = ..., epoch: _Optional[int] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ..., step_ns: _Optional[int] = ..., wait_ns: _Optional[int] = ..., batch_size: _Optional[int] = ...) -> None: ...

class SessionFailed(_message.Message):
    __slots__ = ("code", "detail")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    code: int
    detail: str
    def __init__(self, code: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...
