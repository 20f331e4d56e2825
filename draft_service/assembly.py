"""Puts a draft service together from its settings, and runs it. `python -m draft_service` and tests both do it so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from draft_service.drafters.drafter import Drafter, Proposal
from draft_service.drafters.draws import Chain, Draws
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.ngram_first import NgramFirstDrafter
from draft_service.engine import DraftEngine, DraftLimits, Step
from draft_service.service import DraftService
from draft_service.tracing import DraftTracing
from forerun.config import PROTOCOL_VERSION, DraftConfig
from forerun.model_folder import model_folder
from forerun.rpc import Server
from forerun.runtime.identity import choose_reuse, new_incarnation, service_info
from forerun.runtime.int8_linear import round_linears
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.loading import load_runner, warm_up
from forerun.runtime.model import LoadedModel
from forerun.runtime.output_head import Head, head_for
from forerun.runtime.packed_linear import pack_linears
from forerun.runtime.step_loop import StepLoop
from forerun.telemetry import Tracing
from forerun.v1 import draft_pb2_grpc, types_pb2

MIN_CONFIDENCE = 0.5  # measured: docs/performance.md
NGRAM = "ngram"
NGRAM_FIRST = "ngram+"  # before a model's name: look for a match first
SHIPPED = Path(__file__).parent / "models"  # drafts that come with forerun, by name


@dataclass(frozen=True, slots=True)
class Source:
    """Where candidates come from, within which limits, and what the service says of itself."""

    drafter: Drafter
    limits: DraftLimits
    info: types_pb2.ServiceInfo


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft that is ready to be served."""

    info: types_pb2.ServiceInfo
    engine: DraftEngine
    loop: StepLoop[Step, list[Proposal]]


def load(config: DraftConfig, cache: Path) -> Source:
    """The drafter that the settings name; loads its model, which takes a while. Raises ForerunErrors."""
    if config.model == NGRAM:
        return weightless(NgramDrafter(config.ngram_min, config.ngram_max), NGRAM, config.max_sessions)
    source = _model(config, config.model.removeprefix(NGRAM_FIRST), cache)
    if not config.model.startswith(NGRAM_FIRST):
        return source
    ngram = NgramDrafter(config.ngram_first_min, max(config.ngram_first_min, config.ngram_max))
    return replace(source, drafter=NgramFirstDrafter(ngram, source.drafter))


def weightless(drafter: Drafter, name: str, max_sessions: int) -> Source:
    """A drafter that works with any vocabulary and any length."""
    info = types_pb2.ServiceInfo(
        protocol_version=PROTOCOL_VERSION, incarnation=new_incarnation(), model_id=name, max_sessions=max_sessions
    )
    return Source(drafter, DraftLimits(0, 0, (), max_sessions), info)


def draft_folder(name: str, cache: Path) -> Path:
    """The checkpoint of a draft model: one that ships with forerun, else as for any model. Raises NotFound."""
    shipped = SHIPPED / name
    return shipped if (shipped / "config.json").is_file() else model_folder(name, cache)


def lighten(model: LoadedModel, config: DraftConfig, vocabulary_size: int) -> Head | None:
    """Makes a draft's steps cheaper, as the settings allow; the head, where it is restricted."""
    head = head_for(model, config.vocabulary, vocabulary_size)
    if config.weights == "auto":
        round_linears(model)
    pack_linears(model)
    return head


def _model(config: DraftConfig, name: str, cache: Path) -> Source:
    folder, target = draft_folder(name, cache), model_folder(config.target, cache)
    runner = load_runner(config, folder, embeddings_from=target)
    model = runner.model
    context_length = min(model.context_length, runner.block_count * runner.block_size)
    tokenizer_folder = folder if (folder / "tokenizer.json").is_file() else target
    info = service_info(config.model, model, tokenizer_folder, context_length, config.max_sessions)
    ends = tuple(sorted(model.end_token_ids))
    head = lighten(model, config, info.vocabulary_size)
    kv_cache = KvCache(runner.block_count, runner.block_size, choose_reuse(config.prefix_reuse, model.device))
    warm_up(config, runner)
    chain = runner if head is None and isinstance(runner, Chain) else None
    draws = Draws(runner, head, chain)
    drafter = ModelDrafter(draws, kv_cache, ends, config.max_batch_tokens)
    limits = DraftLimits(
        model.vocabulary_size, context_length, ends, config.max_sessions, _min_confidence(config, chain is not None)
    )
    return Source(drafter, limits, info)


def _min_confidence(config: DraftConfig, at_once: bool) -> float:
    """A token less saves a step where each is a step, and nothing where the whole draft is computed at once."""
    if config.min_confidence >= 0:
        return config.min_confidence
    return 0.0 if at_once else MIN_CONFIDENCE


def assemble(source: Source, tracing: Tracing) -> Draft:
    """The service around a drafter."""
    engine = DraftEngine(source.limits, source.drafter, DraftTracing(tracing))
    return Draft(
        source.info, engine, StepLoop(engine, lambda step: partial(source.drafter.execute, step.batch), "draft-model")
    )


@asynccontextmanager
async def serving(draft: Draft, host: str, port: int) -> AsyncIterator[tuple[Server, int]]:
    """Listens and steps for as long as the block lasts; gives the server and its port."""
    server = Server()
    service = DraftService(draft.info, draft.engine, draft.loop.wake)
    server.add(draft_pb2_grpc.add_DraftServiceServicer_to_server, service, "forerun.v1.DraftService")
    server.at_stop(service.drain)
    bound = await server.start(host, port)
    async with draft.loop.running():
        server.ready()
        try:
            yield server, bound
        finally:
            await server.stop(0)
