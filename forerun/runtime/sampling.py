"""How a token is drawn from logits: the one function that the target and its drafts both call.

A draw is `argmax(scores)`; for temperature > 0 the scores are the processed logits plus the noise of (seed, position,
token id), so it is a pure function of one row of logits, the settings and the history: bitwise the same alone, in any
batch, and as a later row of a longer draft. Order as in vLLM: logit bias, minimum length, penalties (repetition,
frequency, presence), temperature, min-p, top-k, top-p. It runs no model and decides no acceptance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.errors import Internal
from forerun.logprobs import TokenLogprobs
from forerun.runtime.noise import gumbel_noise, to_device
from forerun.sampling_params import SamplingParams

MIN_TEMPERATURE = 1e-6  # smaller ones, zero apart, draw as this one does
WEIGHT_UNIT = 2.0**40  # probabilities as integers: their sums are exact, so equal in any order and on any device
FIRST_NUCLEUS_WIDTH = 256  # on a CPU top-p sorts this many tokens first and widens only where they hold too little


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """The rows of logits that belong to one sequence. Row i draws `first_position + i` after all tokens before it."""

    params: SamplingParams
    token_ids: Sequence[int]  # prompt, committed output, candidates
    prompt_length: int
    first_position: int  # absolute position of the token that the first row draws
    row_count: int
    end_token_ids: tuple[int, ...] = ()  # the model's own; forbidden below min_tokens, as are stop_token_ids


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn token; `logprobs` where the params ask for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of logits, and the position of the token that it draws."""

    request: DrawRequest
    position: int

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def may_not_end(self) -> bool:
        return self.position - self.request.prompt_length < self.params.min_tokens

    @property
    def group(self) -> int:
        """0: argmax of the raw logits; 1: argmax of processed logits; 2: sampled."""
        return int(self.adjusted) if self.params.greedy else 2

    @property
    def adjusted(self) -> bool:
        """Whether some logits change before anything is drawn."""
        return bool(self.params.logit_bias) or self.params.has_penalties or self.may_not_end

    @property
    def simple(self) -> bool:
        """Whether its draw is an argmax of logits over temperature plus noise."""
        params = self.params
        return not self.adjusted and params.top_k <= 0 and params.top_p >= 1 and params.min_p <= 0


def is_plain(request: DrawRequest) -> bool:
    """Whether all its rows draw the largest logit, as the model gave them."""
    return _Row(request, request.first_position).group == 0


def is_simple(request: DrawRequest) -> bool:
    """Whether `draw_kernel.draw_rows` draws all its rows as `draw` would."""
    return _Row(request, request.first_position).simple


def is_bare(request: DrawRequest) -> bool:
    """Whether it is simple, and the token is all that is asked for."""
    return is_simple(request) and request.params.logprobs is None


@torch.inference_mode()
def draw(logits: Tensor, requests: Sequence[DrawRequest], drawn: Tensor | None = None) -> list[list[Draw]]:
    """Draws one token for every row of `logits` [sum of row_count, V], any float type; one list for each request.

    `drawn` is what `draw_kernel.draw_rows` drew from them already; it holds for the rows that are simple.
    Equal scores go to the lowest token id; so does a row whose every token is forbidden. Raises Internal if a row
    that is drawn from holds NaN or +infinity. `logits` is left as it was.
    """
    rows = [_Row(request, request.first_position + i) for request in requests for i in range(request.row_count)]
    assert logits.shape[0] == len(rows), f"{logits.shape[0]} rows of logits for {len(rows)} draws"
    assert all(len(r.token_ids) >= r.first_position + r.row_count - 1 for r in requests), "history is too short"
    if not rows:
        return [[] for _ in requests]
    if drawn is not None and all(map(is_bare, requests)):
        return draws_of(drawn.tolist(), requests)
    token_ids, scores = _choose(logits, rows, drawn)
    asking = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    parts = [token_ids.double(), scores.double()]
    if asking:
        width = max(rows[i].params.logprobs or 0 for i in asking)
        parts.append(_logprobs(logits, token_ids, asking, width).flatten())
    numbers: list[float] = torch.cat(parts).tolist()  # the one copy to the host
    count = len(rows)
    _check(numbers[count : 2 * count], rows)
    details = iter(numbers[2 * count :])
    found = {i: _token_logprobs([next(details) for _ in range(1 + 2 * width)], rows[i].params) for i in asking}
    draws = iter(Draw(int(token_id), found.get(i)) for i, token_id in enumerate(numbers[:count]))
    return [[next(draws) for _ in range(request.row_count)] for request in requests]


def draws_of(drawn: Sequence[Sequence[float]], requests: Sequence[DrawRequest]) -> list[list[Draw]]:
    """From what `draw_rows` drew [N, 2], for requests that are all bare. Raises Internal as `draw` does."""
    found = iter(drawn)
    made = []
    for request in requests:
        draws = []
        for i in range(request.row_count):
            token_id = int(next(found)[0])
            if token_id < 0:
                raise Internal(_no_numbers(request.first_position + i))
            draws.append(Draw(token_id))
        made.append(draws)
    return made


def _choose(logits: Tensor, rows: Sequence[_Row], drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    """Each row's token id [N] and the score it won with [N], in the order of the rows."""
    order = [i for i, row in enumerate(rows) if row.simple] if drawn is not None else []
    tokens, winners = [], []
    if drawn is not None and order:
        taken = (drawn if len(order) == len(rows) else drawn[_tensor(order, logits)])[:, 0]
        tokens.append(taken.long())
        winners.append(torch.where(taken < 0, math.nan, taken))  # below zero: no draw, for want of numbers
    for group in range(3):
        indices = [i for i, row in enumerate(rows) if row.group == group and not (drawn is not None and row.simple)]
        if not indices:
            continue
        scores = logits if len(indices) == len(rows) else logits[_tensor(indices, logits)]
        if group:
            scores = _processed(scores.to(torch.float32, copy=scores is logits), [rows[i] for i in indices])
        token_ids = scores.argmax(-1, keepdim=True)
        order += indices
        tokens.append(token_ids[:, 0])
        winners.append(scores.gather(1, token_ids)[:, 0].float())
    if len(tokens) == 1:
        return tokens[0], winners[0]
    back = _tensor(order, logits).argsort()
    return torch.cat(tokens)[back], torch.cat(winners)[back]


def _processed(scores: Tensor, rows: Sequence[_Row]) -> Tensor:
    """Turns float32 logits [n, V] into scores, in place: all rows greedy, or all sampled."""
    noise = None
    if not rows[0].params.greedy:  # first, since it needs no logits: a GPU's host is ahead of the forward pass here
        seeds, positions = [row.params.seed for row in rows], [row.position for row in rows]
        noise = gumbel_noise(seeds, positions, scores.shape[1], scores.device)
    _add_logit_bias_(scores, rows)
    _forbid_ends_(scores, rows)
    _penalise_(scores, rows)
    if noise is not None:
        _apply_temperature_(scores, rows)
        _truncate_(scores, rows)
        scores += noise
    return scores


def _add_logit_bias_(scores: Tensor, rows: Sequence[_Row]) -> None:
    entries = [(i, token_id, bias) for i, row in enumerate(rows) for token_id, bias in row.params.logit_bias.items()]
    if entries:
        row_ids, token_ids, biases = zip(*entries, strict=True)
        scores[_tensor(row_ids, scores), _tensor(token_ids, scores)] += _floats(biases, scores)


def _forbid_ends_(scores: Tensor, rows: Sequence[_Row]) -> None:
    """No end or stop token while the output is shorter than min_tokens, whether or not they would end it."""
    entries = [
        (i, token_id)
        for i, row in enumerate(rows)
        if row.may_not_end
        for token_id in (*row.request.end_token_ids, *row.params.stop_token_ids)
    ]
    if entries:
        row_ids, token_ids = zip(*entries, strict=True)
        scores[_tensor(row_ids, scores), _tensor(token_ids, scores)] = -math.inf


def _penalise_(scores: Tensor, rows: Sequence[_Row]) -> None:
    """Repetition over prompt and output (divides positive logits, multiplies others); frequency, presence: output."""
    indices = [i for i, row in enumerate(rows) if row.params.has_penalties]
    if not indices:
        return
    some = [rows[i] for i in indices]
    at = _tensor(indices, scores)
    seen, output = _history_counts(some, scores)
    repetition = _floats((row.params.repetition_penalty for row in some), scores)[:, None]
    frequency = _floats((row.params.frequency_penalty for row in some), scores)[:, None]
    presence = _floats((row.params.presence_penalty for row in some), scores)[:, None]
    raw = scores[at]  # [n, V]
    repeated = torch.where(raw > 0, raw / repetition, raw * repetition)
    scores[at] = torch.where(seen > 0, repeated, raw).sub_(frequency * output).sub_(presence * (output > 0))


def _history_counts(rows: Sequence[_Row], like: Tensor) -> tuple[Tensor, Tensor]:
    """How often each token came before each row, in prompt and output and in output alone: float32 [n, V], exact."""
    requests = list({id(row.request): row.request for row in rows}.values())
    number = {id(request): i for i, request in enumerate(requests)}
    length = max(row.position for row in rows)
    padded = [[*r.token_ids[:length], *[0] * (length - len(r.token_ids))] for r in requests]
    token_ids = _tensor(padded, like)[_tensor([number[id(row.request)] for row in rows], like)]  # [n, length]
    place = torch.arange(length, device=like.device)
    seen = place < _tensor([row.position for row in rows], like)[:, None]
    output = seen & (place >= _tensor([row.request.prompt_length for row in rows], like)[:, None])
    zeros = like.new_zeros(len(rows), like.shape[1])
    return zeros.scatter_add(1, token_ids, seen.float()), zeros.scatter_add(1, token_ids, output.float())


def _apply_temperature_(scores: Tensor, rows: Sequence[_Row]) -> None:
    """The best token's score becomes 0, which no small temperature can overflow; the others scale below it."""
    best = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).min)  # all -inf: stay so, not NaN
    scores.sub_(best).div_(_floats((max(row.params.temperature, MIN_TEMPERATURE) for row in rows), scores)[:, None])


def _truncate_(scores: Tensor, rows: Sequence[_Row]) -> None:
    """min-p, then top-k, then top-p of what is left. Each keeps the best token, and ties at its cut together."""
    vocabulary_size = scores.shape[1]
    floors = [math.log(row.params.min_p) if row.params.min_p > 0 else -math.inf for row in rows]
    by_k = [i for i, row in enumerate(rows) if 0 < row.params.top_k < vocabulary_size]
    by_p = [i for i, row in enumerate(rows) if row.params.top_p < 1]
    if not by_k and not by_p and max(floors) == -math.inf:
        return
    floor = _floats(floors, scores)[:, None]  # [n, 1], the lowest score that stays
    if by_k:
        at = _tensor(by_k, scores)
        ranks = _tensor([rows[i].params.top_k - 1 for i in by_k], scores)[:, None]
        largest = scores[at].topk(max(rows[i].params.top_k for i in by_k)).values
        floor[at] = floor[at].maximum(largest.gather(1, ranks))
    if by_p:
        at = _tensor(by_p, scores)
        top_p = to_device([rows[i].params.top_p for i in by_p], torch.float64, scores.device)[:, None]
        floor[at] = floor[at].maximum(_nucleus_floor(scores[at], floor[at], top_p))
    scores.masked_fill_(scores < floor, -math.inf)


def _nucleus_floor(scores: Tensor, floor: Tensor, top_p: Tensor) -> Tensor:
    """[n, 1]: the lowest score of the smallest likeliest set that holds `top_p` of the mass at or above `floor`."""
    goal = _weights(scores, floor).sum(-1, keepdim=True) * top_p
    everything = scores.shape[1]
    width = min(FIRST_NUCLEUS_WIDTH, everything) if scores.device.type == "cpu" else everything  # asking a GPU waits
    while True:
        likeliest = scores.topk(width).values if width < everything else scores.sort(descending=True).values
        weights = _weights(likeliest, floor)
        kept = (weights.cumsum(-1) - weights < goal).sum(-1, keepdim=True)  # those before which mass is missing
        if width == everything or bool((kept < width).all()):
            return likeliest.gather(1, kept.clamp_(min=1) - 1)
        width = min(16 * width, everything)


def _weights(scores: Tensor, floor: Tensor | float = -math.inf) -> Tensor:
    """exp(scores) in integer units; scores <= 0, and those below `floor` weigh nothing."""
    return scores.exp().mul_(WEIGHT_UNIT).long().masked_fill_(scores < floor, 0)


def _logprobs(logits: Tensor, token_ids: Tensor, indices: Sequence[int], width: int) -> Tensor:
    """Float64 [len(indices), 1 + 2 width]: the drawn token's logprob, the likeliest token ids, their logprobs."""
    at = _tensor(indices, logits)
    raw = logits[at].float()
    shifted = raw - raw.amax(-1, keepdim=True)
    total = (_weights(shifted).sum(-1, keepdim=True) / WEIGHT_UNIT).log()
    vocabulary_size = logits.shape[1]
    bits = (raw + 0.0).view(torch.int32)  # + 0.0 makes -0.0 equal to 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the floats
    backwards = torch.arange(vocabulary_size - 1, -1, -1, device=logits.device)
    keys = (ordered.long() << 32) | backwards  # all different: ties go to the lowest id
    top = vocabulary_size - 1 - (keys.topk(width).values & 0xFFFFFFFF)
    chosen = torch.cat([token_ids[at][:, None], top], 1)
    values = (shifted.gather(1, chosen) - total).double()
    return torch.cat([values[:, :1], top.double(), values[:, 1:]], 1)


def _token_logprobs(numbers: Sequence[float], params: SamplingParams) -> TokenLogprobs:
    """From one row of `_logprobs`, which may be wider than these params ask for."""
    width = len(numbers) // 2
    top = zip(numbers[1 : 1 + width], numbers[1 + width :], strict=True)
    return TokenLogprobs(numbers[0], tuple((int(i), v) for i, v in list(top)[: params.logprobs]))


def _check(scores: Sequence[float], rows: Sequence[_Row]) -> None:
    """NaN wins every argmax and +infinity every other, so looking at the winners is enough."""
    for score, row in zip(scores, rows, strict=True):
        if not score < math.inf:
            raise Internal(_no_numbers(row.position))


def _no_numbers(position: int) -> str:
    return f"the model's logits for position {position} hold NaN or infinity; nothing was drawn"


def _tensor(values: Sequence[object], like: Tensor) -> Tensor:
    return to_device(values, torch.int64, like.device)


def _floats(values: Iterable[float], like: Tensor) -> Tensor:
    return to_device(list(values), torch.float32, like.device)
