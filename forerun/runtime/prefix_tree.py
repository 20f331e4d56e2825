"""Finds a computed block of the key-value cache by the tokens it holds and by all tokens before them.

Keys and values of a token depend on every token before it, so a block is of use only after the very same ones. Tokens
are compared as they are, not by a digest: two prefixes are never taken for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Node:
    """A block, and the blocks known to follow it, by their tokens."""

    block: int
    token_ids: tuple[int, ...]
    parent: _Node | None  # None: the root, which stands for no tokens at all
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


class PrefixTree:
    """Registered blocks. A path from the root is a prefix; each block is there once."""

    def __init__(self) -> None:
        self._root = _Node(-1, (), None)
        self._nodes: dict[int, _Node] = {}  # by block

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: int) -> bool:
        return block in self._nodes

    def find(self, before: int | None, token_ids: tuple[int, ...]) -> int | None:
        """The block with these tokens after those that end with block `before`; None for `before`: the first block."""
        node = self._root if before is None else self._nodes.get(before)
        child = None if node is None else node.children.get(token_ids)
        return None if child is None else child.block

    def add(self, before: int | None, token_ids: tuple[int, ...], block: int) -> None:
        """Registers a block after a registered one, or as a first one."""
        parent = self._root if before is None else self._nodes[before]
        assert block not in self._nodes and token_ids not in parent.children, (before, token_ids, block)
        self._nodes[block] = parent.children[token_ids] = _Node(block, token_ids, parent)

    def remove(self, block: int) -> None:
        """Forgets a block that no other follows."""
        node = self._nodes.pop(block)
        assert not node.children and node.parent is not None, f"block {block} is followed by others"
        del node.parent.children[node.token_ids]
