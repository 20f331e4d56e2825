"""The stages on a model small enough to train in a test: shapes, borders, gradients, and what comes back from disk."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training import card, config, loss, prompts, student
from training.decoder import LockstepDecoder
from training.dialogue import ANSWER, FORCED, USER, Script, Template, write
from training.evaluate import Prompt, answer, draft_flags, measure
from training.train import Batches, Sequences, Trainer

TEMPLATE = (
    "{% for message in messages %}<s> {{ message['role'] }} : {{ message['content'] }} <e> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant : {% endif %}"
)
WORDS = ["<s>", "<e>", ":", "user", "assistant", "@user@", "@answer@", "@again@", "."]
WORDS += [f"w{i}" for i in range(23)]


@pytest.fixture
def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        eos_token_id=1,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(shape)
    model.requires_grad_(False)
    return model


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="."))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="<e>", chat_template=TEMPLATE
    )


def test_lockstep_decoding_gives_the_models_own_logits(target: LlamaForCausalLM) -> None:
    tokens = torch.randint(len(WORDS), (3, 80))
    decoder = LockstepDecoder(target, batch=3, length=96)
    decoder.prefill(tokens[:, :60])
    for position in range(59, 80):
        logits = decoder.step(tokens[:, position], position)
    torch.testing.assert_close(logits, target(tokens).logits[:, -1], atol=1e-4, rtol=1e-4)


def test_turns_change_through_the_templates_borders(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    template = Template(tokenizer)
    assert (template.prefix, template.to_answer, template.to_user) == ([0, 3, 2], [1, 0, 4, 2], [1, 0, 3, 2])
    row = torch.tensor([0.0, 0.0])
    script = Script(torch.tensor([template.prefix] * 2), [[9, 1], [10]], row, row, row + 2, row + 2)
    spoken = iter([11, 11, 11, 11, 12, 13, 1, 11, 11, 11, 11, 11, 11])

    def scripted(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        return torch.full((2,), next(spoken))

    tokens, kinds = write(LockstepDecoder(target, batch=2, length=16), script, template, scripted)
    #                            opening, border,  answer,     border,  user turn
    assert tokens[0].tolist()[3:] == [9, 1, 0, 4, 2, 13, 1, 0, 3, 2, 11, 11, 11]
    assert kinds[0].tolist()[3:] == [*[FORCED] * 5, ANSWER, ANSWER, *[FORCED] * 3, *[USER] * 3]
    # The second turn says too much without ending a sentence, and is ended at twice its limit.
    assert tokens[1].tolist()[3:] == [10, 11, 11, 11, 1, 0, 4, 2, 11, 11, 11, 11, 1]
    assert kinds[1].tolist()[3:] == [FORCED, USER, USER, USER, *[FORCED] * 4, *[ANSWER] * 4, FORCED]


def test_gradients_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hidden, wanted, head = torch.randn(20, 8), torch.randn(20, 8), torch.randn(11, 8)
    chosen = torch.tensor([1, 2, 5, 7, 11, 13, 19])
    whole = hidden.clone().requires_grad_()
    total, _ = loss.chunk_loss(whole[chosen], wanted[chosen], head, torch.full((7,), 1 / 7), 0.3)
    total.backward()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(loss, "CHUNK", 3)
    split = hidden.clone().requires_grad_()
    value, _ = loss.backward(split * 1, wanted, head, chosen, 0.3)
    torch.testing.assert_close(value, total.detach())
    torch.testing.assert_close(split.grad, whole.grad)


def test_training_lowers_the_loss_and_survives_a_restart(target: LlamaForCausalLM, tmp_path: Path) -> None:
    settings = config.TrainConfig(steps=20, tokens_per_step=64, warmup=1, learning_rate=1e-2)
    shape = config.StudentConfig(layers=(0, 2), intermediate_size=16)
    trainer = Trainer(target, student.from_target(target, shape), settings)
    batch = Sequences(torch.randint(len(WORDS), (4, 16)), torch.ones(4, 16, dtype=torch.bool), None)
    losses = [trainer.learn(batch)[0].item() for _ in range(10)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path / "checkpoint.pt")
    again = Trainer(target, student.from_target(target, shape), settings)
    again.restore(tmp_path / "checkpoint.pt")
    assert again.step == 10
    torch.testing.assert_close(trainer.learn(batch)[0], again.learn(batch)[0])


def test_a_saved_draft_holds_no_embeddings_and_works_with_the_targets(target: LlamaForCausalLM, tmp_path: Path) -> None:
    draft = student.from_target(target, config.StudentConfig(layers=(0, 2), intermediate_size=16))
    student.save(draft, tmp_path)
    loaded = student.load(tmp_path, target)
    assert not any("embed" in name or "lm_head" in name for name in student.own_weights(draft))
    tokens = torch.randint(len(WORDS), (1, 8))
    torch.testing.assert_close(loaded(tokens).logits, draft(tokens).logits, atol=0.1, rtol=0.1)


def test_the_export_passes_on_which_head_is_advised(target: LlamaForCausalLM, tmp_path: Path) -> None:
    shape = config.StudentConfig(layers=(0, 2), intermediate_size=16)
    student.save(student.from_target(target, shape), tmp_path / "draft")
    file = tmp_path / "c.toml"
    file.write_text(
        f'target = "t"\nwork = "w"\noutput = "{tmp_path / "out"}"\n[student]\nlayers = [0, 2]\nintermediate_size = 16\n'
    )
    for overrides, advised in ((["head_tokens=12288"], 12288), ([], None)):
        card.export(config.load(file, overrides), tmp_path / "draft", [])
        assert json.loads((tmp_path / "out" / "forerun.json").read_text()).get("head_tokens") == advised


def test_the_shipped_drafts_advice_is_that_of_its_configuration() -> None:
    root = Path(__file__).parents[2]
    settings = config.load(root / "training/smollm2-135m.toml")
    note = json.loads((root / settings.output / "forerun.json").read_text())
    assert note["head_tokens"] == settings.head_tokens


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_equal_to_its_target_is_always_right(target: LlamaForCausalLM, temperature: float) -> None:
    asked = [Prompt("a", [3, 4, 5]), Prompt("b", [6, 7, 8, 9, 10])]
    settings = config.EvaluateConfig(new_tokens=12, batch=2)
    batches = answer(target, asked, settings, temperature)
    assert all(all(flags) for flags in draft_flags(target, batches[0], temperature))
    measured = measure(target, batches, settings, temperature)
    assert measured["settings"] == {**vars(settings), "prompts": 2}


def test_a_step_always_draws_the_same_samples(tmp_path: Path) -> None:
    tokens, kinds = np.arange(64, dtype=np.uint32).reshape(8, 8), np.full((8, 8), ANSWER, dtype=np.uint8)
    np.savez(tmp_path / "chat-000.npz", tokens=tokens, kinds=kinds)
    settings = config.TrainConfig(tokens_per_step=32)
    first, second = (Batches(tmp_path, settings, torch.device("cpu")) for _ in range(2))
    assert first.at(5).tokens.tolist() == second.at(5).tokens.tolist()
    assert first.at(5).tokens.tolist() != first.at(6).tokens.tolist()


def test_misspelt_settings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('target = "t"\nwork = "w"\noutput = "o"\n[student]\nlayers = [1]\nintermediate_size = 8\n')
    assert config.load(file, ["train.steps=3"]).train.steps == 3
    with pytest.raises(ValueError, match="stepz"):
        config.load(file, ["train.stepz=3"])


def test_every_opening_has_its_words_filled_in() -> None:
    rng = random.Random(0)
    made = [prompts.chat(rng) for _ in range(2000)] + [prompts.passage(rng) for _ in range(100)]
    assert all(opening.text and "{" not in opening.text for opening in made)
    assert len({opening.text for opening in made}) > 1000
