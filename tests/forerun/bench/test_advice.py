"""What is advised on made-up results, where the right answer is known."""

from __future__ import annotations

from forerun.bench.advice import Advice, Choice, advise, command
from forerun.bench.findings import caveats, findings
from forerun.bench.load import Load
from forerun.bench.records import Deployment
from forerun.bench.summary import summarise
from forerun.bench.variants import OFF
from tests.forerun.bench.made_up import Costs, made_up_run

ONE, FOUR = Load(concurrency=1), Load(concurrency=4)


def test_a_good_draft_is_run_and_the_reason_is_tokens_against_time() -> None:
    run = made_up_run(costs={"model:4": Costs(accept=0.9)})
    advice = advise(summarise(run))
    assert command(run, advice) == "forerun up --draft model-draft --draft-length 4"
    assert advice.headline == "Run model:4: it is the fastest at every measured load."
    reason = advice.choices[0].reason
    assert "as fast as off, because a round commits" in reason
    assert "most of the difference is waiting for the draft" in reason


def test_slower_speculation_is_turned_off_with_the_cause() -> None:
    waiting = made_up_run((OFF, "model:4"), costs={"model:4": Costs(accept=0.1, draft_ms=20)})
    advice = advise(summarise(waiting))
    assert advice.headline.startswith("Turn speculation off: no variant is clearly faster")
    assert {choice.pick for choice in advice.choices} == {OFF}
    assert command(waiting, advice) == "forerun up --draft none"
    assert "even the best variant, model:4, runs at 0." in advice.choices[0].reason
    assert "most of the difference is waiting for the draft, 8" in advice.choices[0].reason
    verifying = made_up_run((OFF, "model:4"), costs={"model:4": Costs(accept=0.1, draft_ms=0.1, verify_ms=20)})
    assert "the longer step that verifies the draft" in advise(summarise(verifying)).choices[0].reason


def test_drafts_that_hardly_came_are_not_judged() -> None:
    run = made_up_run((OFF, "model:4"), (1,), {"model:4": Costs(accept=0.0, draft_ms=0.1, verify_ms=20)})
    for request in (request for done in run.passes for request in done.requests if request.speculation.drafted):
        request.speculation.drafted = 4
        request.speculation.drafted_per_position = [1] * 4
    assert "the longer step (few had a draft to verify)" in advise(summarise(run)).choices[0].reason
    text = " ".join(findings(run, summarise(run)))
    assert "only 2% of the rounds had candidates" in text
    assert "candidates are accepted" not in text


def test_speculation_can_pay_at_one_load_and_not_at_another() -> None:
    run = made_up_run(
        (OFF, "model:4"),
        (1, 4, 16),
        {OFF: Costs(per_request_ms=0), "model:4": Costs(accept=0.7, per_request_ms=20)},
    )
    advice = advise(summarise(run))
    assert advice.headline == "Run model:4 at concurrency 1; turn speculation off at concurrency 4 to 16."
    table = "FORERUN_GATEWAY_DRAFT_LENGTH_BY_BATCH=1:4,4:0,16:0"
    assert command(run, advice) == f"{table} forerun up --draft model-draft"


def test_a_gain_that_may_be_chance_is_not_trusted() -> None:
    run = made_up_run((OFF, "model:4"), (1,), {"model:4": Costs(accept=0.9)})
    slow = next(done for done in run.passes if done.variant == "model:4").requests[0]
    slow.latency_s *= 6
    (choice,) = advise(summarise(run)).choices
    assert choice.pick == OFF


def test_no_difference_means_off() -> None:
    costs = Costs(accept=0.0, draft_ms=0.0, verify_ms=0.0)
    (choice,) = advise(summarise(made_up_run((OFF, "model:4"), (4,), {"model:4": costs}))).choices
    assert choice.pick == OFF


def test_without_off_nothing_is_claimed() -> None:
    advice = advise(summarise(made_up_run(("model:2", "model:4"), (1,))))
    assert advice.headline.startswith("Plain decoding (off) was not measured")
    alone = advise(summarise(made_up_run((OFF,), (1,))))
    assert alone.headline == "Only plain decoding was measured; there is nothing to compare it with."


def test_acceptance_under_60_percent_is_called_a_mismatch_and_a_length_is_proposed() -> None:
    run = made_up_run((OFF, "model:4"), (16,), {"model:4": Costs(accept=0.4)})
    text = " ".join(findings(run, summarise(run)))
    assert "under 60%: draft and target are a mismatch" in text
    assert "Its second candidate is accepted in fewer than one round in 5: a draft length of 1 loses little." in text
    good = made_up_run((OFF, "model:4"), (4,), {"model:4": Costs(accept=0.95)})
    text = " ".join(findings(good, summarise(good)))
    assert "draft and target match well. The last of 4 is still accepted" in text


def test_kinds_of_prompts_are_told_apart() -> None:
    run = made_up_run((OFF, "model:2"), (16,))
    assert "model:2 is accepted most in extraction" in " ".join(findings(run, summarise(run)))


def test_outputs_that_differ_are_a_bug_in_float32_and_near_ties_otherwise() -> None:
    run = made_up_run()
    assert "Lossless: all" in findings(run, summarise(run))[0]
    run.passes[-1].requests[0].token_ids[-1] += 1
    assert "1 of" in findings(run, summarise(run))[0] and "report this as a bug" in findings(run, summarise(run))[0]
    for deployment in run.deployments:
        deployment.dtype = "bfloat16"
    assert "near-ties" in findings(run, summarise(run))[0]


def test_what_makes_figures_unsure_is_said() -> None:
    run = made_up_run((OFF, "model:4"), (1,))
    run.complete = False
    run.machine["busy_cores"] = 1.5
    run.passes[0].requests[0].error = "UNAVAILABLE: away"
    run.deployments.append(Deployment("ngram", failure="did not start\nand more"))
    text = "\n".join(caveats(run, summarise(run)))
    for part in (
        "was interrupted",
        "ngram could not be measured: did not start",
        "1 requests failed and count in no figure: UNAVAILABLE: away (1 times)",
        "rest on 3 requests only",
        "1.5 of its 2 cores had other work",
    ):
        assert part in text


def test_a_run_without_passes_has_no_advice() -> None:
    run = made_up_run()
    run.passes = []
    assert advise(summarise(run)).headline == "Nothing was measured."


def test_rounds_without_candidates_are_pointed_out() -> None:
    run = made_up_run((OFF, "model:4"), (1,))
    for done in run.passes:
        for request in done.requests:
            request.speculation.rounds *= 3
    assert "With model:4 only 33% of the rounds had candidates" in " ".join(findings(run, summarise(run)))


def test_the_command_names_a_combined_drafter_and_leaves_an_open_length_to_the_gateway() -> None:
    run = made_up_run((OFF, "ngram+model"), (1,))
    choice = Choice(ONE, "ngram+model", "")
    run.deployments[0].draft = "small"
    assert command(run, Advice("", (choice,))) == "forerun up --draft ngram+small"
    mixed = (choice, Choice(FOUR, "other:4", ""))
    assert command(run, Advice("", mixed)) == ""
