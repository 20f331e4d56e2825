"""The target's tokenizer as the gateway uses it: prompts to ids, ids to text.

Wraps the `tokenizers` library, never `transformers`, which would bring torch into the gateway. Special tokens that
users write into their own text are text unless they ask otherwise. Streaming is `gateway.detokenizer`'s business.
"""

from __future__ import annotations

import functools
import itertools
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders

from forerun.errors import FailedPrecondition, InvalidArgument
from forerun.vocabulary import Vocabulary, read_vocabulary
from gateway.chat_template import ChatMessage, read_chat_template

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
REMEMBERED = 1 << 16  # tokens whose text is; a language's usual ones are far fewer


class Tokenizer:
    """A checkpoint's tokenizer. Immutable once built, so worker threads may share it."""

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        self.vocabulary: Vocabulary = read_vocabulary(folder)
        # Whether special tokens are parsed is a switch on the library's object. Two objects, set once, instead of
        # one that threads would flip under each other.
        self._parsing = _load(folder / "tokenizer.json")
        self._literal = _load(folder / "tokenizer.json")
        self._literal.encode_special_tokens = True
        self._template = read_chat_template(folder)
        added = self._parsing.get_added_tokens_decoder()
        self._special = {token.content: token_id for token_id, token in added.items() if token.special}
        self._special_ids = frozenset(self._special.values())
        self._special_pattern = _pattern(token for token in added.values() if token.special)
        # Unigram models hold their special tokens as ordinary pieces, too. Text that spells one is cut inside it.
        self._forgeable = _pattern(
            token for token in added.values() if token.special and self._special_ids.intersection(self._spell(token))
        )
        self.byte_level: bool = isinstance(self._parsing.decoder, decoders.ByteLevel)
        self._byte_fallback = _has_byte_fallback(self._parsing)
        # The same for every answer, and asked of every token in it.
        self.is_skipped = functools.lru_cache(REMEMBERED)(self._is_skipped)
        self.token_text = functools.lru_cache(REMEMBERED)(self._token_text)
        self.token_bytes = functools.lru_cache(REMEMBERED)(self._token_bytes)

    @property
    def vocabulary_size(self) -> int:
        return self.vocabulary.size

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.vocabulary.end_token_ids

    def encode_text(self, text: str, parse_special_tokens: bool, add_special_tokens: bool = True) -> list[int]:
        """The ids of a plain prompt; `add_special_tokens` puts what the model expects around it, such as BOS."""
        _valid("prompt", text)
        encode = self._parse if parse_special_tokens else self._literally
        return encode(text, add_special_tokens)

    def encode_chat(self, messages: Sequence[ChatMessage], parse_special_tokens: bool) -> list[int]:
        """The ids of a conversation in the model's own chat format, ready for the assistant's answer."""
        if self._template is None:
            raise InvalidArgument("messages", "this model has no chat template; send prompt text")
        for message in messages:
            _valid("messages", message.content)
        if parse_special_tokens or not any(self._special_in(message.content) for message in messages):
            return self._parse(self._template.render(messages))
        literals = _Literals()
        hidden = [
            ChatMessage(message.role, self._special_pattern.sub(literals.hide, message.content)) for message in messages
        ]
        return self._encode_around(literals.split(self._template.render(hidden)))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids. Ids that name no token are left out."""
        return self._parsing.decode(ids, skip_special_tokens=skip_special_tokens)

    def _is_skipped(self, token_id: int) -> bool:
        """Whether decoding leaves the token out: a special one, or an id without a token."""
        return token_id in self._special_ids or self._parsing.id_to_token(token_id) is None

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is one raw byte, written <0x0A>, of a character the vocabulary lacks."""
        return self._byte_fallback and _BYTE_TOKEN.fullmatch(self.piece(token_id)) is not None

    def piece(self, token_id: int) -> str:
        """The token as the vocabulary spells it, which is not its text; empty for an id without a token."""
        return self._parsing.id_to_token(token_id) or ""

    def _token_text(self, token_id: int) -> str:
        """The text of one token in mid-sentence, special tokens too; U+FFFD where it holds part of a character."""
        once = self.decode([token_id], skip_special_tokens=False)
        # A decoder may strip the space in front of the first token, so look at a second one.
        twice = self.decode([token_id, token_id], skip_special_tokens=False)
        return twice.removeprefix(once) if twice.startswith(once) else once

    def _token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, also where they are not whole characters."""
        piece = self.piece(token_id)
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        if not self.byte_level:
            return self.token_text(token_id).encode()
        try:
            return bytes(map(_BYTE_OF_CHARACTER.__getitem__, piece))
        except KeyError:  # an added token, spelt in plain text
            return piece.encode()

    def _spell(self, token: tokenizers.AddedToken) -> list[int]:
        return list(self._literal.encode(token.content, add_special_tokens=False).ids)

    def _special_in(self, text: str) -> bool:
        return self._special_pattern.search(text) is not None

    def _parse(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self._parsing.encode(text, add_special_tokens=add_special_tokens).ids)

    def _literally(self, text: str, add_special_tokens: bool = False) -> list[int]:
        encoding = self._literal.encode(text, add_special_tokens=add_special_tokens)
        if not self._forgeable.search(text):
            return list(encoding.ids)
        inside = (match.start(match.lastindex or 0) + 1 for match in self._forgeable.finditer(text))
        cuts = [0, *inside, len(text)]
        pieces = [self._literal.encode(text[a:b], add_special_tokens=False).ids for a, b in itertools.pairwise(cuts)]
        added = encoding.special_tokens_mask  # 1 for BOS and the like, in front and behind
        border = added.index(0)
        tail = added[border:].count(1)
        return [*encoding.ids[:border], *itertools.chain(*pieces), *encoding.ids[len(encoding.ids) - tail :]]

    def _encode_around(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of text in which special tokens count only outside the literal parts.

        Text between two of the template's special tokens is encoded in one piece, literals included, so that it
        gets the ids it would have if those strings were no special tokens at all.
        """
        ids: list[int] = []
        text = ""
        for part, literal in parts:
            start = 0
            for match in () if literal else self._special_pattern.finditer(part):
                ids += self._literally(text + part[start : match.start()])
                ids.append(self._special[match[match.lastindex or 0]])
                text, start = "", match.end()
            text += part[start:]
        return ids + self._literally(text)


class _Literals:
    """Takes strings out of text before it passes through a template, and finds their places again after it."""

    def __init__(self) -> None:
        # A fresh random number for each prompt, so that no text can contain one. Digits survive case filters.
        self._mark = f"\ue000{secrets.randbits(64)}\ue001"
        self._taken: list[str] = []

    def hide(self, match: re.Match[str]) -> str:
        self._taken.append(match[0])
        return f"{self._mark}{len(self._taken) - 1}\ue002"

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """(part, whether it is one of the strings taken out), in order."""
        for position, part in enumerate(re.split(f"{self._mark}(\\d+)\ue002", text)):
            yield (self._taken[int(part)], True) if position % 2 else (part, False)


def _load(path: Path) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for everything
        raise FailedPrecondition(f"{path}: cannot be loaded: {error}") from error
    # A file may carry the settings of its last training run; a prompt must arrive whole.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _pattern(special: Iterable[tokenizers.AddedToken]) -> re.Pattern[str]:
    """Matches a special token as the library does: longest first, with the blanks that it swallows."""
    alternatives = [
        (r"\s*" if token.lstrip else "") + f"({re.escape(token.content)})" + (r"\s*" if token.rstrip else "")
        for token in sorted(special, key=lambda token: len(token.content), reverse=True)
    ]
    return re.compile("|".join(alternatives) or r"(?!)")


def _has_byte_fallback(tokenizer: tokenizers.Tokenizer) -> bool:
    return tokenizer.decoder is not None and tokenizer.decoder.decode(["a", "<0x41>"]).endswith("A")


def _valid(field: str, text: str) -> str:
    """JSON can smuggle in half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(field, "holds a lone surrogate, which is not text") from None
    return text


def _byte_of_character() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the rest follows from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()
