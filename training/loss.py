"""How far the student's next-token distribution is from the target's, without holding all logits at once.

The loss is a cross-entropy against a mixture: mostly the target's full distribution, which serves sampling, and a
share on its most likely token, which is what greedy verification asks for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 8192  # positions whose logits exist at a time


def chunk_loss(student: Tensor, target: Tensor, head: Tensor, weight: Tensor, hard: float) -> tuple[Tensor, Tensor]:
    """Weighted sums of loss and agreement; hidden states [n, hidden], head [vocabulary, hidden], weight [n]."""
    with torch.no_grad():
        target_logits = F.linear(target, head).float()
        target_probs = target_logits.softmax(-1)
        best = target_logits.argmax(-1)
    logits = F.linear(student, head).float()
    log_probs = logits.log_softmax(-1)
    soft = -(target_probs * log_probs).sum(-1)
    hard_loss = -log_probs.gather(-1, best[:, None])[:, 0]
    agreed = (logits.detach().argmax(-1) == best).float()
    return (((1 - hard) * soft + hard * hard_loss) * weight).sum(), (agreed * weight).sum()


ChunkLoss = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


def backward(
    student: Tensor, target: Tensor, head: Tensor, chosen: Tensor, hard: float, compute: ChunkLoss = chunk_loss
) -> tuple[Tensor, Tensor]:
    """Mean loss and agreement at the `chosen` positions, after back-propagating the loss into `student`.

    Hidden states are [positions, hidden], `chosen` is indices. Every chunk has one shape, so it compiles once; the last
    is filled up with positions of no weight.
    """
    gradient = torch.zeros_like(student)
    loss = torch.zeros((), device=student.device)
    agreed = torch.zeros((), device=student.device)
    for start in range(0, len(chosen), CHUNK):
        part = chosen[start : start + CHUNK]
        weight = torch.full((CHUNK,), 1 / len(chosen), device=student.device)
        weight[len(part) :] = 0
        part = F.pad(part, (0, CHUNK - len(part)))
        hidden = student.detach()[part].requires_grad_()
        one_loss, one_agreed = compute(hidden, target[part], head, weight, hard)
        one_loss.backward()  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        gradient.index_add_(0, part, hidden.grad)
        loss, agreed = loss + one_loss.detach(), agreed + one_agreed
    student.backward(gradient)  # type: ignore[no-untyped-call]
    return loss, agreed
