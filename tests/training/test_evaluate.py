"""Mean accepted length from flags: the rounds that speculative decoding would have had."""

from __future__ import annotations

from training.evaluate import Tally, accepted_runs, runs_with_ngrams
from training.ngram import NgramDrafter


def test_a_round_accepts_up_to_the_first_wrong_candidate_and_commits_one_more() -> None:
    assert accepted_runs([True, True, False, False, True], 4) == [2, 0, 1]
    assert accepted_runs([True] * 10, 4) == [4, 4]
    assert accepted_runs([], 4) == []


def test_mean_accepted_length_is_committed_tokens_per_round() -> None:
    tally = Tally()
    tally.add(5, [2, 0, 1], 4)
    summary = tally.summary()
    assert summary["mean_accepted_length"] == round(5 / 3, 4)
    assert summary["acceptance_by_position"] == [0.6667, 0.3333, 0.0, 0.0]


def test_ngrams_propose_what_followed_the_longest_match() -> None:
    drafter = NgramDrafter([9, 1, 2, 3, 50, 1, 2, 3, 60, 9, 1, 2, 3])
    assert drafter.propose(2) == [50, 1]  # "9 1 2 3" is longer than the later "1 2 3"
    assert NgramDrafter([1, 2, 3, 4]).propose(4) == []


def test_the_draft_speaks_where_no_ngram_does() -> None:
    prompt, answer = [1, 2, 3, 4, 5], [7, 1, 2, 3, 4, 5]
    nothing = [False] * len(answer)
    assert runs_with_ngrams(prompt, answer, nothing, 4) == [0, 0, 0, 0, 2]
    assert runs_with_ngrams(prompt, answer, [True] * len(answer), 4) == [4, 1]
